//! What one caller uses of what all callers share, and the share that it may take.

use std::{
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use rustc_hash::FxHashMap;

use crate::{
    resilience::ids::{AllIds, IdAccount, IdRecord},
    time::{Clock, timestamp::Timestamp},
};

/// The most names and networks with accounts of their own. All others share one.
const ACCOUNTS_MAX: usize = 4_096;
/// The pause between two searches for accounts without ids, if there are too many.
const PRUNE_PAUSE: Duration = Duration::from_secs(1);

/// What a connection uses of what all callers share. Clones share it, and connections of one origin share their ids.
#[derive(Clone, Debug, Default)]
pub struct Caller(Arc<Use>);

#[derive(Debug, Default)]
struct Use {
    // That of the certificate.
    name: Option<Box<[u8]>>,
    access: CallerAccess,
    // Checks that wait for a remote decision.
    open_checks: AtomicUsize,
    // Of all connections of the same origin, those that were closed included.
    ids: Arc<IdAccount>,
}

/// What a caller may do without the admin token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallerAccess {
    /// What every caller may.
    #[default]
    Callers,
    /// What every caller may; also to set, read, remove and list limits of keys of their own.
    Limits,
}

/// Where the calls of a connection come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CallerOrigin {
    /// The holder of a certificate that was verified, by its name.
    Name(Box<[u8]>),
    /// An IPv4 address, or the /64 network of an IPv6 address; `None` for a Unix socket.
    Network(Option<IpAddr>),
}

/// The callers of this process. Ids count for all connections of an origin, also after the one that sent them was closed.
#[derive(Clone, Debug)]
pub struct CallerRegistry(Arc<Mutex<Accounts>>);

#[derive(Debug)]
struct Accounts {
    clock: Clock,
    all: Arc<AllIds>,
    each: FxHashMap<CallerOrigin, Arc<IdAccount>>,
    shared: Arc<IdAccount>,
    prune_at: Timestamp,
}

impl Caller {
    /// The name of the certificate of the caller, if it was verified.
    pub fn name(&self) -> Option<&[u8]> {
        self.0.name.as_deref()
    }

    /// What the caller may do without the admin token.
    pub fn access(&self) -> CallerAccess {
        self.0.access
    }

    /// The open checks of the connection.
    pub fn open_checks(&self) -> usize {
        self.0.open_checks.load(Relaxed)
    }

    /// The caller of this excludes other changes since its [`Caller::open_checks`].
    pub fn set_open_checks(&self, checks: usize) {
        self.0.open_checks.store(checks, Relaxed);
    }

    /// The bytes of the ids that are retained at `now`.
    pub fn id_bytes(&self, now: Timestamp) -> usize {
        self.0.ids.bytes(now)
    }

    /// Whether the id is retained at `now`.
    pub fn has_id(&self, id: u64, now: Timestamp) -> bool {
        self.0.ids.contains(id, now)
    }

    /// Retains an id. The ids of all callers take `bytes_max` at most.
    pub fn remember_id(&self, record: IdRecord, bytes_max: usize, now: Timestamp) {
        self.0.ids.remember(record, bytes_max, now);
    }
}

impl CallerOrigin {
    /// The network of a peer.
    pub fn network(address: Option<IpAddr>) -> Self {
        Self::Network(address.map(|address| match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
        }))
    }
}

impl CallerRegistry {
    /// No callers. `clock` is that of the counters.
    pub fn new(clock: Clock) -> Self {
        let all = Arc::<AllIds>::default();
        let shared = Arc::new(IdAccount::new(all.clone()));
        let prune_at = Timestamp::EPOCH;
        Self(Arc::new(Mutex::new(Accounts { clock, all, each: FxHashMap::default(), shared, prune_at })))
    }

    /// The caller of a new connection.
    pub fn connected(&self, origin: CallerOrigin, access: CallerAccess) -> Caller {
        // Each change is whole before anything can panic.
        let mut accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let name = match &origin {
            CallerOrigin::Name(name) => Some(name.clone()),
            CallerOrigin::Network(_) => None,
        };
        let ids = accounts.account_of(origin);
        Caller(Arc::new(Use { name, access, open_checks: AtomicUsize::new(0), ids }))
    }
}

impl Accounts {
    fn account_of(&mut self, origin: CallerOrigin) -> Arc<IdAccount> {
        let is_full = self.each.len() >= ACCOUNTS_MAX;
        let now = self.clock.now();
        if is_full && self.prune_at <= now {
            self.prune_at = now.after(PRUNE_PAUSE);
            self.each.retain(|_, account| Arc::strong_count(account) > 1 || account.bytes(now) > 0);
        }
        match self.each.get(&origin) {
            Some(account) => account.clone(),
            None if self.each.len() >= ACCOUNTS_MAX => self.shared.clone(),
            None => {
                let account = Arc::new(IdAccount::new(self.all.clone()));
                self.each.insert(origin, account.clone());
                account
            }
        }
    }
}

/// Once half is used, a caller gets at most this fraction of what the others leave free.
pub const CALLER_SHARE: usize = 4;

/// How much of something is used.
#[derive(Clone, Copy, Debug)]
pub struct SharedUse {
    /// What one of the sharers uses.
    pub own: usize,
    /// What all sharers use together.
    pub all: usize,
    /// The most that all sharers may use together.
    pub max: usize,
}

impl SharedUse {
    /// Whether the sharer may use `more`. Once half is used, it gets one of `parts` parts of what the others leave.
    pub fn has_room_for(self, more: usize, parts: usize) -> bool {
        let of_others = self.all.saturating_sub(self.own);
        self.all.saturating_add(more) <= self.max / 2
            || self.own.saturating_add(more) <= self.max.saturating_sub(of_others) / parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::timestamp::SECOND;

    const NOW: Timestamp = Timestamp::from_nanos(SECOND);

    fn callers() -> CallerRegistry {
        CallerRegistry::new(Clock::manual(NOW))
    }

    fn network(address: &str) -> CallerOrigin {
        CallerOrigin::network(Some(address.parse().unwrap()))
    }

    fn connect(callers: &CallerRegistry, origin: CallerOrigin) -> Caller {
        callers.connected(origin, CallerAccess::Callers)
    }

    fn remember(caller: &Caller, id: u64) {
        let record = IdRecord { id, until: NOW.plus(5), bytes: 100 };
        caller.remember_id(record, 1_000_000, NOW);
    }

    #[test]
    fn ids_of_connections_of_one_network_count_together() {
        let callers = callers();
        let open: Vec<_> = (0..20).map(|_| connect(&callers, network("10.0.0.1"))).collect();
        open.iter().zip(0..).for_each(|(caller, id)| remember(caller, id));
        for caller in [&open[0], &open[19], &connect(&callers, network("::ffff:10.0.0.1"))] {
            assert_eq!((caller.id_bytes(NOW), caller.has_id(7, NOW)), (2_000, true));
        }
        assert_eq!(connect(&callers, network("10.0.0.2")).id_bytes(NOW), 0);
        drop(open);
        let next = connect(&callers, network("10.0.0.1"));
        assert_eq!(next.id_bytes(NOW), 2_000, "ids of closed connections count");
        remember(&next, 1);
        assert_eq!(next.id_bytes(NOW), 2_000, "the id is known");
        assert_eq!(next.id_bytes(NOW.plus(5)), 0);
    }

    #[test]
    fn connections_of_one_name_or_ipv6_network_are_one_caller() {
        let callers = callers();
        let named = || connect(&callers, CallerOrigin::Name(b"edge".as_slice().into()));
        let first = named();
        remember(&first, 1);
        assert_eq!(named().id_bytes(NOW), 100);
        drop(first);
        assert_eq!(named().id_bytes(NOW), 100);
        remember(&connect(&callers, network("fd00::1")), 2);
        assert_eq!(connect(&callers, network("fd00::2:0:0:1")).id_bytes(NOW), 100);
        assert_eq!(connect(&callers, network("fd00:0:0:1::1")).id_bytes(NOW), 0);
    }

    #[test]
    fn accounts_are_bounded_and_unused_ones_make_room() {
        let callers = callers();
        let numbered = |number: usize| connect(&callers, CallerOrigin::Name(number.to_be_bytes().into()));
        let held: Vec<_> = (0..ACCOUNTS_MAX).map(numbered).collect();
        for number in ACCOUNTS_MAX..ACCOUNTS_MAX + 2 {
            remember(&numbered(number), number as u64);
        }
        assert_eq!(numbered(ACCOUNTS_MAX + 2).id_bytes(NOW), 200, "further ones share an account");
        drop(held);
        callers.0.lock().unwrap().clock.set(NOW.after(PRUNE_PAUSE));
        assert_eq!(numbered(ACCOUNTS_MAX + 3).id_bytes(NOW), 0);
        assert_eq!(callers.0.lock().unwrap().each.len(), 1);
    }

    #[test]
    fn one_takes_half_and_others_find_room() {
        let (mut each, max) = ([0_usize; 4], 1_024);
        for one in 0..each.len() {
            while (SharedUse { own: each[one], all: each.iter().sum(), max }).has_room_for(1, CALLER_SHARE) {
                each[one] += 1;
            }
        }
        assert_eq!(each, [512, 128, 96, 72]);
    }
}
