"""What a trained model attends to: maps captured, saved, measured, aligned; heads ablated.

Start with `capture.capture` (a run and a sentence become maps), `maps.AttentionMaps` (the maps of
one sentence, layer by layer) and `map_stream.stream_maps` (those of a corpus, a batch at a time).
Imports `search`, `huggingface`, `runs` and what is below them.
"""
