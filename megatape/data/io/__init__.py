"""Files at paths and URLs: finds, opens and copies them, and reads them as lines or tar members.

* inputs.py lists the files in a user's inputs (listing.py, local_folder.py, remote_folder.py).
* files.py opens a file. URLs are read by remote_file.py, which resumes after failures of the server (retries.py).
* raw_stream.py is the base class of files whose content comes from a server or a decompressor.
* compression.py decompresses it (streams.py).
* records.py reads lines of JSON, json_array.py one JSON array, and tar.py the members of a tar file.
* columns.py makes and stores columns of Arrow.
* isolated.py runs work that may crash in a child process.
"""
