"""Tables, progress, curves and attention maps, rendered as text, pages and pictures.

Start with `table.Table` (cells for people and programs, written in any format), `comparison_tables.tables` (tables of
a comparison) and `map_picture.picture` (attention maps as a file). Imports `scoring`, `analysis`, `experiment` and
the other packages whose results it shows.
"""
