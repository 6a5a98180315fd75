"""The findings of `txpool check`: their classes, and those that several databases share."""
