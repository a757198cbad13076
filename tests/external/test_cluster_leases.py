"""Leases of hot keys by behaviour: rules without them, and what ends a refusal that was lent."""

import functools
import itertools
import time

import pytest

from processes import eventually
from rls import descriptor, rate_limit_request

pytestmark = pytest.mark.extended

LIMIT = 300
RULES = """
    domain: edge
    descriptors:
      - key: hot
        rate_limit: {{unit: year, requests_per_unit: {limit}, algorithm: fixed_window}}
      - key: unlent
        rate_limit: {{unit: year, requests_per_unit: {limit}, algorithm: fixed_window, lease: false}}
"""
LEASED = "tollgate_cluster_leased_checks_total"
LENT = "tollgate_cluster_slices_lent_total"
LOST = "tollgate_cluster_slices_lost_total"
# For which a replica may refuse without the owner: three quarters of the time that the owner lends.
LEASE_SECONDS = 0.375
# The time within which an owner counts a lease as lost: half a second, and slack for a busy machine.
LOSS_TIMEOUT = 3.0
ATTEMPTS = 5
names = (f"name-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def leasing_cluster(share_cluster):
    """Every forward asks for a lease, at any rate of calls."""
    return share_cluster(rules=RULES.format(limit=LIMIT), flags=["--cluster-lease-from", "1"])


@pytest.fixture
def cluster(leasing_cluster):
    set_limit(leasing_cluster, LIMIT)
    return leasing_cluster


def passes(responses):
    return sum(response.passes for response in responses)


def test_rule_without_lease_is_decided_by_owner_only(cluster, callers):
    key, lent, leased = ("unlent", next(names)), cluster.total(LENT), cluster.total(LEASED)

    calls = [(to, rate_limit_request(descriptor(key))) for to in cluster.targets * 150]
    assert passes(callers.call_all(calls)) == LIMIT
    assert (cluster.total(LENT), cluster.total(LEASED)) == (lent, leased), "neither hits nor refusals are lent"

    # The same calls of a rule with leases are decided by leases.
    key = ("hot", next(names))
    calls = [(to, rate_limit_request(descriptor(key))) for to in cluster.targets * 150]
    assert passes(callers.call_all(calls)) == LIMIT
    assert cluster.total(LEASED) > leased


def has_limit(replica, limit):
    return f"requests_per_unit={limit}," in replica.call(replica.admin, "/rlconfig").body


def set_limit(cluster, limit):
    cluster.rules.write_text(RULES.format(limit=limit))
    eventually("every replica has the limit", lambda: all(has_limit(one, limit) for one in cluster.replicas))


class LentRefusal:
    """An exhausted key that one replica refuses without its owner."""

    def __init__(self, cluster, callers):
        self.cluster, self.callers = cluster, callers
        self.key = ("hot", next(names))
        # The refusal was lent at this moment or later.
        self.lent_at = None
        assert callers.call(cluster.targets[0], descriptor(self.key, hits=LIMIT)).passes
        # One of two replicas is not the owner. On a slow machine a refusal may end between two calls.
        replicas = itertools.cycle(cluster.replicas[:2])
        self.borrower = eventually("a refusal is lent", lambda: self.borrows(next(replicas)))

    def borrows(self, replica):
        """The replica, if the owner decides the first of two calls and not the second."""
        leased, started = replica.metric(LEASED), time.monotonic()
        assert not self.passes(replica) and not self.passes(replica)
        if replica.metric(LEASED) != leased + 1:
            return None
        self.lent_at = started
        return replica

    def passes(self, replica):
        response = self.callers.call(replica.grpc, descriptor(self.key))
        assert not response.error
        return response.passes

    def may_be_lent(self):
        return time.monotonic() - self.lent_at < LEASE_SECONDS


def refund(refusal):
    # Through another replica, because the answer to the borrower could bring a lease.
    other = next(replica for replica in refusal.cluster.replicas if replica is not refusal.borrower)
    assert refusal.callers.call(other.grpc, descriptor(refusal.key, hits=LIMIT, refund=True)).passes
    # The owner has sent the revocation, so its answer to a peek at another of its keys comes after it. Each replica owns
    # some of these keys.
    peeks = [rate_limit_request(descriptor(("unlent", f"peek-{number}"), hits=0)) for number in range(24)]
    refusal.callers.call_all([(refusal.borrower.grpc, peek) for peek in peeks])


def reset(refusal):
    borrower, (key, value) = refusal.borrower, refusal.key
    response = borrower.call(borrower.admin, f"/counters?domain=edge&key={key}={value}", "DELETE")
    assert response.code == 200, response.body


def reload(refusal):
    refusal.cluster.rules.write_text(RULES.format(limit=2 * LIMIT))
    borrower = refusal.borrower

    def active():
        # Until the limit is active, the refusal is lent again as soon as it ends. It was lent before this call, unless it
        # is older than a lease.
        started = time.monotonic()
        if not refusal.passes(borrower) and started - refusal.lent_at >= LEASE_SECONDS:
            refusal.lent_at = started
        return has_limit(borrower, 2 * LIMIT)

    eventually("the borrower has the limit", active)


@pytest.mark.timing
@pytest.mark.parametrize("free", [refund, reset, reload])
def test_lent_refusal_ends_when_hits_are_freed(cluster, callers, free):
    lent = 0

    for _ in range(ATTEMPTS):
        set_limit(cluster, LIMIT)
        refusal = LentRefusal(cluster, callers)
        free(refusal)
        # The borrower has a message of the owner that is later than the revocation, on the same link.
        assert refusal.passes(refusal.borrower)
        lent += refusal.may_be_lent()

    assert lent > 0, "every refusal ended before its hits were freed: this machine is too slow"


def key_leased_by(cluster, callers, borrower):
    """A key of which a single call has leased hits to the borrower."""
    while True:
        key, lent = ("hot", next(names)), cluster.total(LENT)
        assert callers.call(borrower.grpc, descriptor(key)).passes
        if cluster.total(LENT) > lent:
            return key


def await_loss(owners, lost):
    """Whether an owner counts a lease as lost, which it does when the lease ends without a report."""
    try:
        eventually("a lease is lost", lambda: sum(owner.metric(LOST) for owner in owners) > lost, LOSS_TIMEOUT)
    except AssertionError:
        return False
    return True


def test_leased_hits_of_frozen_replica_return_when_it_resumes(cluster, callers):
    borrower, *owners = cluster.replicas
    tested = 0

    for _ in range(ATTEMPTS):
        lost = sum(owner.metric(LOST) for owner in owners)
        key = key_leased_by(cluster, callers, borrower)
        borrower.freeze()
        # Not if this machine is so slow that the borrower has returned the lease before.
        tested += await_loss(owners, lost)
        borrower.thaw()
        cluster.await_settled()

        peek = rate_limit_request(descriptor(key, hits=0))
        returned = functools.partial(callers.call_all, [(owners[0].grpc, peek)])
        eventually("unused hits return", lambda returned=returned: returned()[0].remaining == (LIMIT - 1,))
        charges = [(owners[0].grpc, rate_limit_request(descriptor(key)))] * (LIMIT + 20)
        assert passes(callers.call_all(charges)) == LIMIT - 1

    assert tested > 0, "the borrower was never frozen with a lease: this machine is too slow"
