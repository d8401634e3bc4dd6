"""Reads and writes token files of other systems: one file per format (token_format.py), selected through megatape/registry.py.

importing.py makes a data directory from them, exporting.py writes a data directory as such files.

megatron.py   Megatron-LM
mds.py        MosaicML streaming
flat.py       files of token ids alone

documents.py splits token ids into documents.
"""
