"""What a trained model attends to: attention maps captured, saved, measured and aligned; head ablation.

Start with `capture.capture` (the maps of a run and a sentence), `maps.AttentionMaps` (the maps of one sentence by
layer) and `map_stream.stream_maps` (the maps of a corpus, one batch at a time). Imports `search`, `huggingface`,
`runs` and what is below them.
"""
