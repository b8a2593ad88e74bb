"""Export of runs to folders for other libraries, with a check that outputs agree.

Start with `exporting.export` (checks, writes, compares), `parity.compare` (compares run and export on the same lines)
and `to_huggingface` (the only target without another engine). Imports `scoring`, `search`, `huggingface`, `runs` and
the layers below them.
"""
