"""Tables, progress and attention as text and pictures: pure functions of data and width."""
