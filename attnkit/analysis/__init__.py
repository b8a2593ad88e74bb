"""What a trained model attends to: maps captured, saved, measured, aligned; heads ablated."""
