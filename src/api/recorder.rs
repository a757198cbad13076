//! Records the requests that are decided, for `tollgate simulate`, while an operator asks for them.

use std::{
    borrow::Cow,
    iter,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::{
    OwnedSemaphorePermit, Semaphore,
    mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
};
use tollgate_counter::{
    algorithm::Operation,
    descriptor::{self, Entry, KeyText, Secret},
    lock::lock,
    time::Timestamp,
};
use tollgate_limiter::limiter::{ActiveView, Descriptor, Limiter, OwnedRequest, Request};
use tollgate_rules::{
    DescriptorRef, KeyedDomain, KeyedRules, MatchKind, NetworkGroup, TreeNode, address, network_of,
};

/// The maximum size of requests that are not written as lines yet, in bytes. Beyond it requests are left out.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// Requests are written in portions of so many bytes, and of one more request.
const PORTION_BYTES: usize = 64 << 10;
/// What a descriptor and an entry take in addition to their texts, roughly.
const OVERHEAD_BYTES: usize = 32;
/// The maximum number of further hashes that are tried if one matches a pattern that the value does not match.
const ATTEMPTS_MAX: u8 = 63;
/// The maximum number of further hashes for all descriptors of a request together. Beyond it their hashes may match
/// other patterns.
const REQUEST_ATTEMPTS_MAX: u32 = 1_024;

/// What a recording shows of the values of descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordedValues {
    /// Hashes, under a secret of the recording, of all values that no rule names.
    Hashed,
    /// The values.
    Plain,
}

/// Records requests as lines of JSON; one recording at a time. A decision only copies its request: finding hashes that
/// match the same patterns may take as long as a hundred decisions, so a thread in the background does it.
#[derive(Debug)]
pub struct Recorder {
    allowed: RecordedValues,
    // Whether there is a recording, so that a request without one costs a load.
    is_recording: AtomicBool,
    state: Mutex<RecordingState>,
}

#[derive(Debug)]
enum RecordingState {
    Idle,
    Running {
        /// Later requests are not recorded, also if the client has not noticed the end yet.
        until: Timestamp,
        waiting: UnboundedSender<UnwrittenRequest>,
        /// A permit for each byte that may wait.
        room: Arc<Semaphore>,
        left_out: Arc<AtomicU64>,
    },
    // The process stops.
    Stopped,
}

/// A request that is not written as a line yet.
#[derive(Debug)]
pub(super) struct UnwrittenRequest {
    time: Timestamp,
    request: OwnedRequest,
    room: OwnedSemaphorePermit,
}

/// A recording; it ends when this is dropped.
#[derive(Debug)]
pub struct Recording {
    recorder: Arc<Recorder>,
    values: RecordedValues,
    // `None` if values are plain.
    secret: Option<Secret>,
    // It ends when the process stops.
    waiting: UnboundedReceiver<UnwrittenRequest>,
    requests: u64,
    left_out: Arc<AtomicU64>,
}

/// Why there is no recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The setting does not allow plain values.
    #[error("values are recorded as hashes only, unless admin.record is `plain`")]
    PlainNotAllowed,
    /// A recording is running already.
    #[error("another recording is running: try again when it has ended")]
    Busy,
}

/// A request in the form that `tollgate simulate` reads.
#[derive(Serialize)]
struct RecordedRequest<'r> {
    /// The time of the request, in nanoseconds since 1970.
    time: u64,
    domain: &'r str,
    descriptors: Vec<RecordedDescriptor<'r>>,
}

#[derive(Serialize)]
struct RecordedDescriptor<'r> {
    entries: Vec<RecordedEntry<'r>>,
    #[serde(rename = "hitsAddend")]
    hits: u64,
}

#[derive(Serialize)]
struct RecordedEntry<'r> {
    key: Cow<'r, str>,
    value: Cow<'r, str>,
    /// Whether key and value are escaped, because one of them is not UTF-8.
    #[serde(skip_serializing_if = "<&bool as std::ops::Not>::not")]
    escaped: bool,
}

impl<'r> RecordedEntry<'r> {
    fn new(key: &'r [u8], value: Cow<'r, [u8]>) -> Self {
        let escaped = str::from_utf8(key).is_err() || str::from_utf8(&value).is_err();
        let text = |part: &[u8]| match str::from_utf8(part) {
            Ok(text) if !escaped => text.to_owned(),
            Ok(_) | Err(_) => descriptor::escaped(part).into_owned(),
        };
        Self { key: text(key).into(), value: text(&value).into(), escaped }
    }
}

impl Recorder {
    /// A recorder that shows at most these values.
    pub fn new(allowed: RecordedValues) -> Self {
        Self { allowed, is_recording: AtomicBool::new(false), state: Mutex::new(RecordingState::Idle) }
    }

    /// Starts a recording of the requests before `until`.
    pub fn start(
        self: &Arc<Self>,
        values: RecordedValues,
        until: Timestamp,
    ) -> Result<Recording, RecordError> {
        if values > self.allowed {
            return Err(RecordError::PlainNotAllowed);
        }
        let (sender, waiting) = unbounded_channel();
        let left_out = Arc::<AtomicU64>::default();
        let mut state = lock(&self.state);
        match *state {
            RecordingState::Idle => {
                let room = Arc::new(Semaphore::new(WAITING_BYTES_MAX));
                let left_out = left_out.clone();
                *state = RecordingState::Running { until, waiting: sender, room, left_out };
                self.is_recording.store(true, Relaxed);
            }
            RecordingState::Running { .. } => return Err(RecordError::Busy),
            // Without a sender it ends at once.
            RecordingState::Stopped => {}
        }
        drop(state);
        let secret = (values == RecordedValues::Hashed).then(Secret::random);
        Ok(Recording { recorder: self.clone(), values, secret, waiting, requests: 0, left_out })
    }

    /// Ends recordings, because the process stops.
    pub fn stop(&self) {
        *lock(&self.state) = RecordingState::Stopped;
    }

    /// Records a request that `view` has decided, if there is a recording and the request charges.
    #[inline]
    pub(super) fn record(&self, request: &Request<'_>, view: &ActiveView<'_>) {
        if self.is_recording.load(Relaxed) {
            self.add(request, view.now());
        }
    }

    #[cold]
    fn add(&self, request: &Request<'_>, time: Timestamp) {
        if charged(request).next().is_none() {
            return;
        }
        let (waiting, room) = match &*lock(&self.state) {
            RecordingState::Running { until, waiting, room, left_out } if time < *until => {
                // What does not fit into a number does not fit into the room.
                let bytes = u32::try_from(bytes(request)).unwrap_or(u32::MAX);
                let Ok(room) = room.clone().try_acquire_many_owned(bytes) else {
                    left_out.fetch_add(1, Relaxed);
                    return;
                };
                (waiting.clone(), room)
            }
            RecordingState::Running { .. } | RecordingState::Idle | RecordingState::Stopped => return,
        };
        // An error means that the recording has ended meanwhile.
        let _ = waiting.send(UnwrittenRequest { time, request: request.to_owned(), room });
    }
}

impl Recording {
    /// The requests since the last call, or the first of them; waits until there are some. `None` if the process stops.
    pub(super) async fn next(&mut self) -> Option<Vec<UnwrittenRequest>> {
        let first = self.waiting.recv().await?;
        let mut bytes = first.room.num_permits();
        let mut portion = vec![first];
        while bytes < PORTION_BYTES
            && let Ok(request) = self.waiting.try_recv()
        {
            bytes += request.room.num_permits();
            portion.push(request);
        }
        Some(portion)
    }

    /// The lines of requests, with hashes that match the active rules as their values do.
    pub(super) fn lines(
        &mut self,
        requests: impl IntoIterator<Item = UnwrittenRequest>,
        limiter: &Limiter,
    ) -> Vec<u8> {
        let mut lines = Vec::new();
        for request in requests {
            request.write(limiter.view().rules(), self.secret.as_ref(), &mut lines);
            self.requests += 1;
        }
        lines
    }

    /// Ends the recording: the lines that are left, and one that says how complete it is.
    pub fn end(mut self, limiter: &Limiter) -> Vec<u8> {
        self.recorder.is_recording.store(false, Relaxed);
        self.waiting.close();
        let rest: Vec<_> = iter::from_fn(|| self.waiting.try_recv().ok()).collect();
        let mut lines = self.lines(rest, limiter);
        // Only the drop of `self` makes room for another recording.
        let requests = self.requests;
        let left_out = self.left_out.load(Relaxed);
        let summary =
            json!({"recording": {"requests": requests, "left_out": left_out, "values": self.values}});
        lines.extend_from_slice(format!("{summary}\n").as_bytes());
        lines
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.recorder.is_recording.store(false, Relaxed);
        let mut state = lock(&self.recorder.state);
        match *state {
            RecordingState::Running { .. } => *state = RecordingState::Idle,
            RecordingState::Idle | RecordingState::Stopped => {}
        }
    }
}

impl UnwrittenRequest {
    /// Appends the line of the request.
    fn write(&self, rules: &KeyedRules, secret: Option<&Secret>, lines: &mut Vec<u8>) {
        self.request.with(|request| {
            let name = request.domain();
            let domain = rules.domain(name);
            let mut attempts = REQUEST_ATTEMPTS_MAX;
            let descriptor = |(entries, hits)| {
                let entries = recorded(entries, name, domain, secret, &mut attempts);
                RecordedDescriptor { entries, hits }
            };
            let descriptors = charged(request).map(descriptor).collect();
            let recorded = RecordedRequest { time: self.time.as_nanos(), domain: name, descriptors };
            // Infallible: it has only texts and numbers.
            if serde_json::to_writer(&mut *lines, &recorded).is_ok() {
                lines.push(b'\n');
            }
        });
    }
}

/// The size of a copy of the request.
fn bytes(request: &Request<'_>) -> usize {
    let of_entry = |entry: &Entry<'_>| OVERHEAD_BYTES + entry.key.len() + entry.value.len();
    let of_descriptor =
        |descriptor: &Descriptor<'_>| OVERHEAD_BYTES + descriptor.entries.iter().map(of_entry).sum::<usize>();
    let descriptors: usize = request.descriptors().iter().map(of_descriptor).sum();
    size_of::<UnwrittenRequest>() + request.domain().len() + descriptors
}

/// The entries and the hits of each descriptor that is charged.
fn charged<'r>(request: &'r Request<'_>) -> impl Iterator<Item = (&'r [Entry<'r>], u64)> {
    request.descriptors().iter().filter_map(|Descriptor { entries, operation, .. }| match *operation {
        Operation::Charge(hits) => Some((*entries, hits)),
        Operation::Peek | Operation::Refund(_) => None,
    })
}

/// The entries, with their values or such that match the same rules.
fn recorded<'r>(
    entries: &[Entry<'r>],
    name: &str,
    domain: Option<KeyedDomain<'_>>,
    secret: Option<&Secret>,
    attempts: &mut u32,
) -> Vec<RecordedEntry<'r>> {
    let Some(secret) = secret else {
        return entries.iter().map(|entry| RecordedEntry::new(entry.key, entry.value.into())).collect();
    };
    let matches = |entries: &[Entry<'_>]| domain.map(|domain| domain.matches(entries)).unwrap_or_default();
    let wanted = matches(entries);
    let mut attempt = 0;
    loop {
        let hashed: Vec<_> = entries
            .iter()
            .enumerate()
            .map(|(index, entry)| {
                let value = pseudonym(*entry, wanted.get(index).copied(), |value| {
                    hash(name, Entry { key: entry.key, value }, attempt, secret)
                });
                (entry.key, value)
            })
            .collect();
        let read: Vec<_> = hashed.iter().map(|(key, value)| Entry { key, value }).collect();
        // A pattern such as `4*` also matches hashes.
        let matches_alike = matches(&read) == wanted;
        if matches_alike || attempt == ATTEMPTS_MAX || *attempts == 0 {
            return hashed.into_iter().map(|(key, value)| RecordedEntry::new(key, value)).collect();
        }
        attempt += 1;
        *attempts -= 1;
    }
}

/// The hash of an entry. It is equal for equal entries and attempts while the secret does not change.
fn hash(domain: &str, entry: Entry<'_>, attempt: u8, secret: &Secret) -> u64 {
    let mut text = KeyText::new(domain);
    text.entry(entry);
    text.key(&[attempt], secret).high()
}

/// The value that stands for that of `entry`, which matches in this way: a hash stands for what no rule names, so that
/// it matches the same rules. `hash` hashes values.
fn pseudonym<'r>(
    entry: Entry<'r>,
    matched: Option<DescriptorRef<'_>>,
    hash: impl Fn(&[u8]) -> u64,
) -> Cow<'r, [u8]> {
    let as_text = |value: &[u8]| format!("{:016x}", hash(value));
    let Some((node, kind)) = matched.and_then(|node| Some((node.node, node.matched?))) else {
        return as_text(entry.value).into_bytes().into();
    };
    let network = node.network();
    let TreeNode { value, group, .. } = node;
    match kind {
        MatchKind::Exact => entry.value.into(),
        MatchKind::Pattern => {
            // Values that are counted as one stay one.
            let counted = group.map_or(Cow::Borrowed(entry.value), |group| group.group_value(entry.value));
            let hashed = as_text(&counted);
            let shown = if value.contains('*') { value.replace('*', &hashed) } else { hashed };
            shown.into_bytes().into()
        }
        MatchKind::Network | MatchKind::KeyOnly => match address(entry.value) {
            Some(address) if network.is_some() || group.is_some() => {
                other_address(address, network.map_or(0, |network| network.prefix_len()), hash)
                    .to_string()
                    .into_bytes()
                    .into()
            }
            Some(_) | None => as_text(entry.value).into_bytes().into(),
        },
    }
}

/// An address with the first `kept` bits of `address`. Each further bit is flipped or not by the hash of the bits before
/// it. So two addresses have as many first bits in common as before, and groups of any length stay groups.
fn other_address(address: IpAddr, kept: u8, hash: impl Fn(&[u8]) -> u64) -> IpAddr {
    let bits = NetworkGroup::EACH.length(address);
    let flips = (kept..bits).fold(0_u128, |flips, length| {
        let flip = hash(network_of(address, length).to_string().as_bytes()) & 1;
        flips | u128::from(flip) << (bits - 1 - length)
    });
    match address {
        // The flips of an IPv4 address are in the lower 32 bits.
        IpAddr::V4(address) => IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() ^ flips as u32)),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() ^ flips)),
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hash, Hasher};

    use proptest::prelude::*;
    use tollgate_rules::{IpNet, Rules};

    use super::*;

    fn hash(value: &[u8]) -> u64 {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        hasher.finish()
    }

    /// What stands for a value that a descriptor with these further keys matches.
    fn shown(value: &str, keys: &str) -> String {
        let rules =
            format!("domain: d\ndescriptors:\n- {{key: ip, rate_limit: {{unlimited: true}}{keys}}}\n");
        let rules = Arc::new(Rules::parse("rules.yaml", &rules).unwrap());
        let keyed = KeyedRules::new(Some(rules), Secret::from_bytes([0; 16]));
        let entry = Entry::new("ip", value);
        let matched = keyed.domain("d").unwrap().matches(&[entry]);
        String::from_utf8(pseudonym(entry, Some(matched[0]), hash).into_owned()).unwrap()
    }

    #[test]
    fn address_of_network_is_shown_as_another_one_of_it() {
        let network: IpNet = "10.0.0.0/8".parse().unwrap();
        let other = shown("10.1.2.3:4711", ", value: 10.0.0.0/8, match: cidr");
        assert!(other != "10.1.2.3" && network.contains(&other.parse::<IpAddr>().unwrap()), "{other}");
    }

    #[test]
    fn value_without_network_or_group_is_shown_as_text() {
        assert_eq!(shown("10.1.2.3", ""), format!("{:016x}", hash(b"10.1.2.3")));
        let no_address = shown("ann", ", group: {ipv4: 24, ipv6: 64}");
        assert_eq!(no_address, format!("{:016x}", hash(b"ann")));
        let pattern = ", value: '10.*', group: {ipv4: 24, ipv6: 64}";
        assert_eq!(shown("10.1.2.3", pattern), shown("10.1.2.4", pattern), "both are counted as 10.1.2.0/24");
    }

    proptest! {
        #[test]
        fn groups_of_shown_addresses_are_those_of_the_addresses(one: u128, flipped in 0..128_u32, ipv6 in 1..=128_u8) {
            let matched = format!(", group: {{ipv4: 24, ipv6: {ipv6}}}");
            let other = one ^ (1 << flipped);
            let [one, other] = [one, other].map(|bits| IpAddr::V6(bits.into()));
            prop_assume!(one.to_canonical() == one && other.to_canonical() == other);
            let [shown_one, shown_other] = [one, other].map(|address| shown(&address.to_string(), &matched));
            let are_one = |one: &str, other: &str| {
                let group = NetworkGroup { ipv4: 24, ipv6 };
                group.group_value(one.as_bytes()) == group.group_value(other.as_bytes())
            };
            prop_assert_eq!(are_one(&shown_one, &shown_other), are_one(&one.to_string(), &other.to_string()));
        }
    }
}
