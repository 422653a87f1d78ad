"""What exists once per request or connection, by the hundred at a time, keeps no dictionary of its own.

CPython lets the instances of a class share the keys of their attributes, but adds none once thirty were made. So an attribute
that is first set when thirty-two requests have begun would cost each of them a dictionary.
"""

import gc
from types import FunctionType

import pytest

from maitred.gateway.observe.request_record import RequestRecord
from maitred.scheduler.interface import UpstreamRequest
from maitred.wire.client_framing import ClientFraming
from maitred.wire.exchange import Exchange
from maitred.wire.response import UpstreamResponse
from maitred.wire.server_framing import ServerFraming


@pytest.mark.parametrize("kind", [ClientFraming, Exchange, RequestRecord, ServerFraming, UpstreamResponse])
def test_instances_have_no_dictionary(kind: type) -> None:
    assert kind.__dictoffset__ == 0


@pytest.mark.skipif(not isinstance(UpstreamRequest.__init__, FunctionType), reason="compiled instances have no dictionary")
def test_what_an_answer_sets_after_thirty_requests_have_begun_makes_no_dictionary() -> None:
    fresh = type("Fresh", (UpstreamRequest,), {})  # of which no instance was made before
    begun = [fresh(None, None, None) for _ in range(64)]
    for each in begun:
        each.is_committed = each.is_complete = True
    assert [found for each in begun for found in gc.get_referents(each) if type(found) is dict] == []
