"""Setting up DeepSpeed: what happens before and while an engine is made.

* process_group.py: joins and leaves the process group of all ranks. device.py: selects this rank's device, and sets the
  environment for it.
* sharded_module.py: builds the module, sharded at stage 3. mpu.py: shows DeepSpeed our mesh.
* internals.py: changes to DeepSpeed's behavior by private names. compiler_import.py: delays importing
  torch's compiler.
"""
