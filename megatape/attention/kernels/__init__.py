"""Our Triton kernels of attention, and of the rotation before other backends.

* attention.py: attention as one differentiable function, of the two passes in passes.py.
* head_launches.py: runs a kernel on all heads, with the tiles of tile_sizes.py.
* forward.py, backward.py and distances.py: the kernels of both passes, and of the gradient of a bias by distance.
* scores.py: scores of a tile, and the keys that a block of queries sees, for these kernels.
* rotation.py: the rotation as a differentiable function; rotation_kernels.py: its kernels.
* tiles.py: loading, storing and rotating tiles, for all kernels.
"""
