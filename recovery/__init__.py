"""Recovery: finish what crashes left."""
