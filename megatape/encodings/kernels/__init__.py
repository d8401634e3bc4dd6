"""Our Triton kernels of TAPE's update.

* update.py: the update as one differentiable function.
* update_kernels.py: the kernels; update_settings.py: tiles, warps and programs of their launches, by GPU.
"""
