"""A driver that is killed while it prepares a corpus."""

UNIT_BYTES = 4000
DRIVER = f"""
import os, random, signal, sys, time
import megatape.data.prepare.unit as unit
import megatape.data.sources.units as units
import datasketch, webdataset  # before the forks, which would all import them
from megatape.commands.main import main

units.UNIT_BYTES = {UNIT_BYTES}
read_unit = unit.read_unit

def slowly(*arguments):
    for document in read_unit(*arguments):
        time.sleep(0.003)
        yield document

if __name__ == "__main__":
    seed, kills, *words = sys.argv[1:]
    unit.read_unit = slowly
    draw = random.Random(int(seed))
    for _ in range(int(kills)):
        child = os.fork()
        if not child:
            os._exit(main(words))
        time.sleep(draw.uniform(0.0, 0.4))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    unit.read_unit = read_unit
    sys.exit(main(words))
"""
