"""What only scripts of NeMo 0.x need: its parts, its pretrained models, its Kaldi layer, migration. Frozen."""
