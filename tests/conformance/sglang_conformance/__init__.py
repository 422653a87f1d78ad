"""SGLang's recorded cases, played against `maitred`'s own pieces."""
