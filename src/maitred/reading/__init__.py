"""Files that people write: YAML as frozen structs, every mistake with its file and line.

    document.py  one YAML file as plain values, and where each of them stands
    schema.py    what keys there are: a walk over the structs
    problems.py  what is wrong, said for the person who wrote it
    structs.py   all three: a file as a struct

Nothing is ignored: an unknown key, or one given twice, is an error.
"""
