"""Tables, progress and attention as text and pictures: functions of data and width.

Start with `table.Table` (cells for people and for programs, drawn in any format),
`comparison_tables.tables` (a comparison becomes tables) and `map_picture.picture` (attention maps
become a file). Imports `scoring`, `analysis`, `experiment` and whatever else it draws.
"""
