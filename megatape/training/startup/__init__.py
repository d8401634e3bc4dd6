"""Start of a run: everything between the process group and the first step.

In the order in which pretrain.py and build_trainer.py use them:

rank_agreement.py   opens the data, and checks that all ranks have the same configuration, code and data
memory/             checks that the planned memory is available
build_trainer.py    builds the trainer from its parts: those that the next three entries build
build_loader.py     reader of training samples
build_evaluator.py  evaluator of validation samples
engine/             model and optimizer under DeepSpeed, with kernels that work on all ranks
state/              fills the weights: from a checkpoint, or at step 0, perhaps from another model
run_description.py  tells the user what is about to be trained
export_warning.py   warns about models that cannot be exported
"""
