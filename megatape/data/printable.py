"""Escapes unprintable characters in untrusted names and texts."""


def printable(name: str) -> str:
    """Escape unprintable characters in an untrusted name."""
    if name.isprintable():
        return name
    return name.encode("unicode_escape").decode()


def printable_lines(text: str) -> str:
    """Escape unprintable characters in an untrusted text, except line breaks and tabs."""
    characters = []
    for character in text:
        if not character.isprintable() and character not in "\n\t":
            character = ascii(character)[1:-1]
        characters.append(character)
    return "".join(characters)
