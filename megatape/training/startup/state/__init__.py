"""The state that a run starts from. Start with load_starting_state.py.

load_starting_state.py      loads a checkpoint, or makes a new state
resuming.py                 finds and checks the checkpoint to continue from
new_run_state.py            state at step 0: new weights, or those of training.init_from
initial_weights.py          opens and verifies the weights of training.init_from
initial_weights_summary.py  describes them in a few lines
"""
