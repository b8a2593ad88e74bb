"""What a trained model attends to: maps captured, kept, measured, aligned; heads removed."""
