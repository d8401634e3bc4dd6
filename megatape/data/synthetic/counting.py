"""Counting how often a variable was incremented since it was set (Golovneva et al. 2024).

A text such as `a=b=..b+a+.a=.b+.a+b?2a?1`: `b=` sets a variable to 0, `b+` adds 1, `.` does nothing; the questions at the end
ask for each variable.

Source: Golovneva et al., "Contextual Position Encoding: Learning to Count What's Important",
https://arxiv.org/abs/2405.18719, section on the counting task, and their code (github.com/facebookresearch/RAM,
projects/cope): 3 or 5 variables, 3 to 512 operations, drawing set, increment and pass with weights 1, 7 and 50, and no value
above 10. Differences: the operations have one or two characters, and a text about 8 to 512 of them; questions ask for all
variables, not one; all variables start set; incrementing 9 sets the variable instead; the smaller sizes have fewer variables,
shorter texts and fewer passes, and tiny has one variable, because it trains too briefly for two. The splits differing from
training are ours. Questions only come at the end: asked before each new set, a value would follow from the number of
increments before it and the earlier answers, wherever the increments are.
"""

import random
import string

from megatape.data.synthetic.task import Answer, Size, Split, SyntheticSample, SyntheticTask

SET = "="
INCREMENT = "+"
PASS = "."
QUESTION = "?"
LARGEST = 9
VARIABLES: dict[Size, str] = {"tiny": "a", "small": "abc", "base": "abcde"}
SHORTEST = 8
# Maximum total length of the operations in characters.
LONGEST: dict[Size, int] = {"tiny": 40, "small": 128, "base": 512}
# Weights of operations.
SET_WEIGHT = 1
INCREMENT_WEIGHT = 7
PASSES: dict[Size, int] = {"tiny": 7, "small": 20, "base": 50}


class Counting(SyntheticTask):
    """Say how often a variable was incremented. Plotted over the distance from setting it to the answer."""

    alphabet = VARIABLES["base"] + SET + INCREMENT + PASS + QUESTION + string.digits
    axis = "distance from where the variable is set to the answer"

    def make_splits(self, size: Size) -> dict[str, Split]:
        variables = VARIABLES[size]
        longest = LONGEST[size]
        passes = PASSES[size]

        def split(least: int, most: int, passes: int = passes, differs: str = "") -> Split:
            options = {"variables": variables, "operations": (least, most), "passes": passes}
            return Split(most + 1 + 5 * len(variables), differs, options)

        sparse = "three times as many passes for each increment"
        long = "one to two times as long"
        # The last operation of a training sample may end one character beyond `longest`.
        longer = longest + 2
        return {
            "train": split(SHORTEST, longest),
            "sparse": split(SHORTEST, longest, 3 * passes, sparse),
            "long": split(longer, 2 * longest, differs=long),
            "long_sparse": split(longer, 2 * longest, 3 * passes, f"{long}, and {sparse}"),
        }

    def sample(self, split: Split, generator: random.Random) -> SyntheticSample:
        variables = split.options["variables"]
        passes = split.options["passes"]
        text = "".join(variable + SET for variable in variables)
        value = dict.fromkeys(variables, 0)
        since = {variable: text.index(variable) for variable in variables}
        least, most = split.options["operations"]
        end = len(text) + generator.randint(least, most)
        drawn = iter(generator.choices((SET, INCREMENT, PASS), (SET_WEIGHT, INCREMENT_WEIGHT, passes), k=end))
        while len(text) < end:
            operation = next(drawn)
            variable = generator.choice(variables)
            if operation == PASS:
                text += PASS
                continue
            if operation == INCREMENT and value[variable] < LARGEST:
                value[variable] += 1
            else:
                operation = SET
                value[variable] = 0
                since[variable] = len(text)
            text += variable + operation
        answers = []
        for variable in generator.sample(variables, len(variables)):
            index = len(text) + 2
            answers.append(Answer(index, index + 1, index - since[variable]))
            text += f"{variable}{QUESTION}{value[variable]}"
        return SyntheticSample(text, tuple(answers))
