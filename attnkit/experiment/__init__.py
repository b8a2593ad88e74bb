"""What a recipe as a whole does: its cost explained, its variants and seeds trained and scored."""
