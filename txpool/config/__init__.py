"""Configuration: `.properties` files and what overrides them, secrets, urls, and the settings that come out of it."""
