"""What the model length lets in, and where it ends an answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maitred.core.request import Request
from maitred.instance.entry_limits import LengthLimits


@given(
    model_len=st.integers(1, 60),
    prompt=st.integers(0, 70),
    limit=st.none() | st.integers(1, 70),
    answer=st.integers(0, 70),
)
def test_an_answer_has_a_length_if_its_request_can_run(model_len: int, prompt: int, limit: int | None, answer: int) -> None:
    limits, request = LengthLimits(model_len), Request(id=0, arrival=0, prompt_tokens=prompt, max_output_tokens=limit)
    length = limits.output_length(request, answer)
    assert (length == 0) == (limits.rejection_reason(request) is not None)
    if length:
        assert length == max(1, min(answer, limit or answer, model_len - prompt))
    else:
        assert prompt < 1 or prompt + (limit or 1) > model_len
