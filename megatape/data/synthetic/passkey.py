"""Finding numbers hidden in a meaningless text (Mohtashami & Jaggi 2023, Hsieh et al. 2024).

A text such as `s.the_sky_is_K:407.blue.the_sun_Q:951.is_ye?Q:951?K:407`: repeating sentences with a few keys and their numbers
among them, and at the end questions for some of the keys.

Sources: the sentences and the task are those of Mohtashami & Jaggi, "Landmark Attention: Random-Access Infinite Context Length
for Transformers", https://arxiv.org/abs/2305.16300, section 4.2, like the passkey task (megatape/lab/tasks/passkey/) for
complete language models; using several needles follows the multi-key and multi-query versions in Hsieh et al., "RULER: What's
the Real Context Size of Your Long-Context Language Models?", https://arxiv.org/abs/2404.06654, section 3. Differences: a needle
is a letter and three digits instead of a sentence, needles may break a word, texts have hundreds of tokens instead of
thousands, and each question draws its key anew, as in recall.py.
"""

import random
import string

from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask

SENTENCES = "the_grass_is_green.the_sky_is_blue.the_sun_is_yellow.here_we_go.there_and_back_again."
DIGITS = 3
NEEDLES: dict[Size, int] = {"tiny": 2, "small": 4, "base": 4}
# Number of questions.
ASKED = 4
# Length of the sentences in characters.
FILLER: dict[Size, int] = {"tiny": 40, "small": 192, "base": 960}


class Passkey(SyntheticTask):
    """Find the number for a key. Plotted over the distance from the number's last occurrence to the answer."""

    alphabet = "".join(sorted(set(SENTENCES))) + string.ascii_uppercase + string.digits + ":?"
    axis = "distance from the number to the answer"
    copies = True

    def make_splits(self, size: Size) -> dict[str, Split]:
        needles = NEEDLES[size]
        filler = FILLER[size]

        def split(needles: int, filler: int, differs: str = "") -> Split:
            characters = filler + (needles + ASKED) * (DIGITS + 3)
            return Split(characters, differs, {"needles": needles, "filler": filler})

        return {
            "train": split(needles, filler),
            "long": split(needles, 4 * filler, f"{4 * filler} characters of text, not {filler}"),
            "many": split(3 * needles, filler, f"{3 * needles} numbers, not {needles}"),
        }

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        needles = split.options["needles"]
        filler = split.options["filler"]
        start = generator.randrange(len(SENTENCES))
        repeated = SENTENCES * (filler // len(SENTENCES) + 2)
        sentences = repeated[start : start + filler]
        keys = generator.sample(string.ascii_uppercase, needles)
        numbers = {key: "".join(generator.choices(string.digits, k=DIGITS)) for key in keys}
        text = ""
        used = 0
        indices = sorted(generator.choices(range(filler + 1), k=needles))
        for key, index in zip(keys, indices, strict=True):
            text += f"{sentences[used:index]}{key}:{numbers[key]}."
            used = index
        text += sentences[used:]
        answers = []
        for key in generator.choices(keys, k=ASKED):
            last = text.rindex(key)
            text += f"?{key}:{numbers[key]}"
            begin = len(text) - DIGITS
            answers.append(Answer(begin, len(text), begin - 2 - last))
        return SyntheticSample(text, tuple(answers))
