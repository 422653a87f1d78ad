"""What exists once per request or connection, by the hundred at a time, keeps no dictionary of its own.

CPython lets the instances of a class share the keys of their attributes, but adds none once thirty were made. So an attribute
that is first set when thirty-two requests have begun would cost each of them a dictionary.
"""

import pytest

from maitred.gateway.observe.request_record import RequestRecord
from maitred.wire.client_framing import ClientFraming
from maitred.wire.exchange import Exchange
from maitred.wire.response import UpstreamResponse
from maitred.wire.server_framing import ServerFraming


@pytest.mark.parametrize("kind", [ClientFraming, Exchange, RequestRecord, ServerFraming, UpstreamResponse])
def test_instances_have_no_dictionary(kind: type) -> None:
    assert kind.__dictoffset__ == 0
