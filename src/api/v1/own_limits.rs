//! `SetLimits`, `GetLimits`, `ClearLimits` and `ListLimits`: limits of keys of their own, with the admin token.

use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream};
use prost::Message;
use serde::{Deserialize, Serialize};
use tollgate_counter::{
    descriptor::{Entry, escaped},
    resilience::Caller,
    time::Timestamp,
};
use tollgate_limiter::limiter::{ActiveView, CallSize, CounterRef, OwnLimitsOf, RequestBounds};
use tollgate_rules::OwnNumbers;
use tollgate_store::{OwnLimitChange, OwnLimitOutcome, OwnLimitPosition, OwnLimitRefusal, OwnLimitState};
use tollgate_telemetry::logs::UNLIMITED;
use tollgate_wire::{
    proto::tollgate::v1,
    protobuf::{FRAME_PREFIX_BYTES, MalformedMessage},
};
use tonic::Code;
use tracing::info;

use crate::api::{
    call::CallReply,
    descriptors::{unit, unit_number},
    error::Error,
    metrics::OwnLimitResult,
    service::Api,
    v1::{decode::decode_descriptors, reset::unescaped},
};

/// How many counters elsewhere are asked at a time.
pub(super) const ASKED_AT_ONCE: usize = 64;
/// The listed limits of a page, unless the call says another number.
const PAGE: usize = 100;
/// The most listed limits of a page.
pub(super) const PAGE_MAX: usize = 1_000;
/// The steps of a list in one call. The next call continues it.
const LIST_STEPS_MAX: usize = 8;
/// The maximum length of `note`, in bytes.
const NOTE_MAX: usize = 1_024;
/// The maximum length of `set_by`, in bytes.
const SET_BY_MAX: usize = 256;

/// What is retained with a limit of its own, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct OwnLimitRecord {
    pub(super) domain: String,
    // Escaped.
    pub(super) entries: Vec<(String, String)>,
    pub(super) numbers: OwnNumbers,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    note: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    set_by: String,
    // Whether that is the name of a certificate, and not what a caller has said.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_certified: bool,
    // In milliseconds since 1970.
    set_at: u64,
    // When the rule was first seen with another algorithm or window, or as gone, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) unused_since: Option<u64>,
}

impl OwnLimitRecord {
    /// The record of a change at `now`, without numbers and note. The name of a certificate says who makes it.
    fn new(domain: String, entries: &[OwnedEntry], caller: &Caller, now: Timestamp) -> Self {
        let set_by = caller.name().map(|name| escaped_text(name).chars().take(SET_BY_MAX / 4).collect());
        Self {
            domain,
            entries: entries.iter().map(|(key, value)| (escaped_text(key), escaped_text(value))).collect(),
            numbers: OwnNumbers::default(),
            note: String::new(),
            is_certified: set_by.is_some(),
            set_by: set_by.unwrap_or_default(),
            set_at: millis(now),
            unused_since: None,
        }
    }

    /// The record of a limit whose rule has another algorithm or window, or is gone, since then; `None` if it has not.
    pub(super) fn with_unused_since(self, unused_since: Option<u64>) -> Self {
        Self { unused_since, ..self }
    }

    /// The record as it is retained.
    pub(super) fn bytes(&self) -> Box<[u8]> {
        serde_json::to_vec(self).expect("texts and numbers are always written").into()
    }
}

/// A valid change of the limit of its own of one counter.
struct CheckedChange<'s> {
    counter: CounterRef<'s>,
    record: OwnLimitRecord,
    change: OwnLimitChange,
}

/// The bytes of a key and a value.
type OwnedEntry = (Vec<u8>, Vec<u8>);

impl Api {
    /// Checks all limits, and sets them if all are valid.
    pub(super) async fn set_limits(&self, message: &[u8], caller: &Caller) -> Result<CallReply, Error> {
        let v1::SetLimitsRequest { limits, dry_run } = decoded(message)?;
        require_bounds(&limits, self.settings.bounds())?;
        let view = self.limiter.view();
        let checked = limits.into_iter().map(|limit| check(&view, limit, caller).boxed());
        let checked: Vec<_> =
            stream::iter(checked.collect::<Vec<_>>()).buffered(ASKED_AT_ONCE).collect().await;
        for error in checked.iter().filter_map(|checked| checked.as_ref().err()) {
            self.metrics.own_limits(OwnLimitResult::refused(error.reason)).increase();
        }
        let invalid = checked.iter().position(Result::is_err);
        let results = match invalid {
            Some(first) => {
                let why = format!("nothing is set, because limits[{first}] is invalid");
                let result = |checked: Result<CheckedChange<'_>, Error>| {
                    let other = || Error::new(Code::Aborted, "OTHER_LIMIT_INVALID", why.clone());
                    failed(&checked.err().unwrap_or_else(other))
                };
                checked.into_iter().map(result).collect()
            }
            None if dry_run => {
                checked.iter().flatten().map(|checked| result(&checked.counter, None)).collect()
            }
            None => {
                let set = checked.into_iter().flatten().map(|checked| self.change(&view, checked).boxed());
                answered(set.collect()).await
            }
        };
        Ok(reply(&v1::SetLimitsResponse { results }))
    }

    /// The domain and the descriptors of a call, which are within the bounds of requests.
    fn descriptors(&self, message: &[u8]) -> Result<(String, Vec<v1::Descriptor>), Error> {
        let bounds = self.settings.bounds();
        decode_descriptors(message, bounds, |_unknown, _| Ok(()))?;
        let v1::GetLimitsRequest { domain, descriptors } = decoded(message)?;
        if descriptors.is_empty() {
            return Err(Error::no_requests());
        }
        Ok((domain, descriptors))
    }

    /// Reads limits of their own.
    pub(super) async fn get_limits(&self, message: &[u8]) -> Result<CallReply, Error> {
        let (domain, descriptors) = self.descriptors(message)?;
        let view = self.limiter.view();
        let read = descriptors.iter().map(|descriptor| read(&view, &domain, descriptor).boxed());
        let results = answered(read.collect()).await;
        Ok(reply(&v1::GetLimitsResponse { results }))
    }

    /// Removes limits of their own.
    pub(super) async fn clear_limits(&self, message: &[u8], caller: &Caller) -> Result<CallReply, Error> {
        let (domain, descriptors) = self.descriptors(message)?;
        let view = self.limiter.view();
        let clear =
            descriptors.iter().map(|descriptor| self.clear(&view, &domain, descriptor, caller).boxed());
        let results = answered(clear.collect()).await;
        Ok(reply(&v1::ClearLimitsResponse { results }))
    }

    /// Removes the limit of its own of one counter.
    async fn clear(
        &self,
        view: &ActiveView<'_>,
        domain: &str,
        descriptor: &v1::Descriptor,
        caller: &Caller,
    ) -> v1::LimitResult {
        let checked = async {
            let entries = entries(descriptor)?;
            let counter = view.counter_ref(domain, &as_entries(&entries)).await?;
            let record = OwnLimitRecord::new(domain.to_owned(), &entries, caller, view.now());
            let removed =
                OwnLimitChange { terms: None, expires_after: None, record: Box::default(), replaces: None };
            Ok::<_, Error>(CheckedChange { counter, record, change: removed })
        };
        match checked.await {
            Ok(checked) => self.change(view, checked).await,
            Err(error) => {
                self.metrics.own_limits(OwnLimitResult::refused(error.reason)).increase();
                failed(&error)
            }
        }
    }

    /// Applies a change at the counter, and logs it.
    async fn change(&self, view: &ActiveView<'_>, checked: CheckedChange<'_>) -> v1::LimitResult {
        if let Some(repeated) = repeated(view, &checked).await {
            let outcome = view.set_own_limit(checked.counter.key, &checked.counter.limit, repeated).await;
            if let Ok(OwnLimitOutcome { refusal: None, state }) = outcome {
                return result(&checked.counter, state.as_ref());
            }
        }
        let CheckedChange { counter, record, change } = checked;
        let is_cleared = change.terms.is_none();
        let OwnLimitOutcome { refusal, state } =
            match view.set_own_limit(counter.key, &counter.limit, change).await {
                Ok(outcome) => outcome,
                Err(error) => {
                    let error = Error::from(error);
                    self.metrics.own_limits(OwnLimitResult::refused(error.reason)).increase();
                    return failed(&error);
                }
            };
        if matches!(refusal, None | Some(OwnLimitRefusal::NotBackedUp)) {
            info!(
                name: UNLIMITED,
                domain = record.domain,
                rule = &*counter.rule.path,
                descriptor = ?record.entries,
                limit = %if is_cleared { "cleared".to_owned() } else { serde_json::to_string(&record.numbers).unwrap_or_default() },
                set_by = record.set_by,
                is_claimed = !record.set_by.is_empty() && !record.is_certified,
                "changed the limit of its own of a key"
            );
        }
        let refused = match refusal {
            Some(OwnLimitRefusal::OtherVersion) => {
                Some(Error::new(Code::Aborted, "OTHER_VERSION", "the limit has another version"))
            }
            Some(OwnLimitRefusal::NoMemory) => {
                let why = "limits of their own take at most an eighth of store.memory_limit: raise it";
                Some(Error::new(Code::ResourceExhausted, "NO_MEMORY", why))
            }
            Some(OwnLimitRefusal::NotBackedUp) => {
                let why = "it is changed, and the backup owner has not confirmed it: repeat the call";
                Some(Error::new(Code::Unavailable, "NOT_BACKED_UP", why))
            }
            None => None,
        };
        let counted = match &refused {
            Some(error) => OwnLimitResult::refused(error.reason),
            None if is_cleared => OwnLimitResult::Cleared,
            None => OwnLimitResult::Set,
        };
        self.metrics.own_limits(counted).increase();
        let result = result(&counter, state.as_ref());
        v1::LimitResult { error: refused.as_ref().map(Error::details), ..result }
    }

    /// Lists limits of their own, of all replicas.
    pub(super) async fn list_limits(&self, message: &[u8]) -> Result<CallReply, Error> {
        let v1::ListLimitsRequest { domain, prefix, page_size, page_token } = decoded(message)?;
        let page = match page_size as usize {
            0 => PAGE,
            size => size.min(PAGE_MAX),
        };
        let mut position = match &*page_token {
            "" => None,
            token => Some(OwnLimitPosition::from_token(token).ok_or_else(wrong_page_token)?),
        };
        let view = self.limiter.view();
        let mut size = CallSize::new(self.settings.bounds());
        prefix.iter().try_for_each(|_| size.entry())?;
        let prefix: Vec<_> =
            prefix.iter().map(|entry| (as_text(&entry.key), as_text(&entry.value))).collect();
        let listed = |_key, state: &OwnLimitState| {
            state.terms.as_ref()?;
            let record = serde_json::from_slice::<OwnLimitRecord>(&state.record).ok()?;
            let is_listed =
                (domain.is_empty() || domain == record.domain) && record.entries.starts_with(&prefix);
            is_listed.then(|| own_limit(&record, state))
        };
        let mut limits = Vec::new();
        for _step in 0..LIST_STEPS_MAX {
            let part =
                view.own_limits(OwnLimitsOf::AllReplicas, position, page - limits.len(), &listed).await;
            let (found, next) = part.map_err(|error| Error::from(error).at("the list is not complete"))?;
            limits.extend(found);
            position = next;
            if position.is_none() || limits.len() >= page {
                break;
            }
        }
        let next_page_token = position.map(OwnLimitPosition::token).unwrap_or_default();
        Ok(reply(&v1::ListLimitsResponse { limits, next_page_token }))
    }
}

/// The change that repeats the limit that applies, if numbers and note are the same and neither ends by itself. Version
/// and record stay, and the backup owner confirms it.
async fn repeated(view: &ActiveView<'_>, checked: &CheckedChange<'_>) -> Option<OwnLimitChange> {
    let CheckedChange { counter, record, change } = checked;
    let terms = change.terms.as_ref().filter(|_| change.expires_after.is_none())?;
    let state = view.peek(counter).await.ok()?.details.own_limit?;
    let OwnLimitState { terms: applies, version, expires_after: None, record: bytes } = state else {
        return None;
    };
    let known = serde_json::from_slice::<OwnLimitRecord>(&bytes).ok()?;
    let is_same = applies.as_ref() == Some(terms)
        && (&known.numbers, &known.note) == (&record.numbers, &record.note)
        && change.replaces.is_none_or(|replaced| replaced == version);
    is_same.then(|| OwnLimitChange { record: bytes, replaces: Some(version), ..change.clone() })
}

/// Each limit counts as a request with one descriptor.
fn require_bounds(limits: &[v1::SetLimit], bounds: RequestBounds) -> Result<(), Error> {
    let mut size = CallSize::for_limits(bounds);
    for set in limits {
        size.request()?;
        let Some(descriptor) = set.limit.as_ref().and_then(|limit| limit.key.as_ref()) else {
            continue;
        };
        size.descriptor()?;
        descriptor.entries.iter().try_for_each(|_| size.entry())?;
    }
    if limits.is_empty() { Err(Error::no_requests()) } else { Ok(()) }
}

fn decoded<M: Message + Default>(message: &[u8]) -> Result<M, Error> {
    M::decode(message).map_err(|_| MalformedMessage.into())
}

fn reply(message: &impl Message) -> CallReply {
    let mut frame = vec![0; FRAME_PREFIX_BYTES];
    message.encode(&mut frame).expect("a vector grows as needed");
    CallReply::from_frame(frame)
}

fn wrong_page_token() -> Error {
    Error::new(Code::InvalidArgument, "PAGE_TOKEN", "page_token is not that of an earlier answer")
}

fn failed(error: &Error) -> v1::LimitResult {
    v1::LimitResult { error: Some(error.details()), ..v1::LimitResult::default() }
}

/// The results of asking counters, some at a time, in their order.
async fn answered(each: Vec<BoxFuture<'_, v1::LimitResult>>) -> Vec<v1::LimitResult> {
    stream::iter(each).buffered(ASKED_AT_ONCE).collect().await
}

/// Reads the limit of its own of one counter.
async fn read(view: &ActiveView<'_>, domain: &str, descriptor: &v1::Descriptor) -> v1::LimitResult {
    let read = async {
        let entries = entries(descriptor)?;
        let counter = view.counter_ref(domain, &as_entries(&entries)).await?;
        let state = view.peek(&counter).await?;
        Ok(result(&counter, state.details.own_limit.as_ref()))
    };
    read.await.unwrap_or_else(|error: Error| failed(&error))
}

/// The unescaped entries of a descriptor that names one counter.
fn entries(descriptor: &v1::Descriptor) -> Result<Vec<OwnedEntry>, Error> {
    if descriptor.limit.is_some() || descriptor.hits.is_some() {
        return Err(Error::invalid("LIMIT_OR_HITS", "`key` takes neither limits nor hits here"));
    }
    if descriptor.entries.is_empty() {
        return Err(Error::invalid("NO_ENTRIES", "`key` is missing or has no entries"));
    }
    let given: Vec<_> =
        descriptor.entries.iter().map(|entry| Entry::new(&*entry.key, &*entry.value)).collect();
    let parts = unescaped(&given).ok_or_else(|| {
        Error::invalid("NOT_ESCAPED", "a key or a value is not escaped: a backslash is `\\\\`")
    })?;
    Ok(parts.into_iter().map(|(key, value)| (key.into_owned(), value.into_owned())).collect())
}

fn as_entries(entries: &[OwnedEntry]) -> Vec<Entry<'_>> {
    entries.iter().map(|(key, value)| Entry::new(&**key, &**value)).collect()
}

fn escaped_text(bytes: &[u8]) -> String {
    escaped(bytes).into_owned()
}

/// A text that is escaped already, unless it is not UTF-8.
fn as_text(bytes: &[u8]) -> String {
    str::from_utf8(bytes).map_or_else(|_| escaped_text(bytes), str::to_owned)
}

pub(super) fn millis(now: Timestamp) -> u64 {
    now.as_nanos() / 1_000_000
}

async fn check<'s>(
    view: &'s ActiveView<'_>,
    set: v1::SetLimit,
    caller: &Caller,
) -> Result<CheckedChange<'s>, Error> {
    let v1::SetLimit { limit, replaces_version } = set;
    let limit = limit.ok_or_else(|| Error::invalid("NO_LIMIT", "`limit` is missing"))?;
    let entries = entries(&limit.key.unwrap_or_default())?;
    let counter = view.counter_ref(&limit.domain, &as_entries(&entries)).await?;
    // Without one it is that of the rule.
    let unit = unit(limit.unit);
    if unit_number(unit) != limit.unit {
        return Err(Error::invalid("OUT_OF_BOUNDS", format!("`unit` cannot be {}", limit.unit)));
    }
    let numbers = OwnNumbers {
        requests_per_unit: limit.requests_per_unit,
        unit,
        burst: limit.burst,
        refill_amount: limit.refill_amount,
        max_in_flight: limit.max_in_flight,
        overdraft_limit: limit.overdraft_limit,
        unlimited: limit.unlimited,
    };
    let bounds = counter.rule.options().own.as_ref().ok_or_else(|| {
        let why =
            format!("rule {} has no `own`, so its keys have no limits of their own", counter.rule.name());
        Error::invalid("NO_OWN_LIMITS", why)
    })?;
    let window = counter.stored_window();
    let terms =
        bounds.terms(&numbers, window.as_deref()).map_err(|why| Error::invalid("OUT_OF_BOUNDS", why))?;
    let expires_after = match limit.expires_after {
        None => None,
        Some(duration) => match Duration::try_from(duration) {
            Ok(duration) if !duration.is_zero() => Some(duration),
            Ok(_) | Err(_) => {
                return Err(Error::invalid("EXPIRED", "`expires_after` is not in the future"));
            }
        },
    };
    if limit.note.len() > NOTE_MAX || limit.set_by.len() > SET_BY_MAX {
        let why = format!("`note` has at most {NOTE_MAX} bytes, and `set_by` at most {SET_BY_MAX}");
        return Err(Error::invalid("TOO_LONG", why));
    }
    let mut record = OwnLimitRecord::new(limit.domain, &entries, caller, view.now());
    (record.numbers, record.note) = (numbers, limit.note);
    if !record.is_certified {
        record.set_by = limit.set_by;
    }
    let bytes = record.bytes();
    if bytes.len() > tollgate_store::OWN_RECORD_MAX {
        return Err(Error::invalid("TOO_LONG", "the descriptor is too long for a limit of its own"));
    }
    let change =
        OwnLimitChange { terms: Some(terms), expires_after, record: bytes, replaces: replaces_version };
    Ok(CheckedChange { counter, record, change })
}

fn result(counter: &CounterRef<'_>, state: Option<&OwnLimitState>) -> v1::LimitResult {
    let applies = state.filter(|state| state.terms.is_some());
    let limit = applies.and_then(|state| {
        let record = serde_json::from_slice::<OwnLimitRecord>(&state.record).ok()?;
        Some(own_limit(&record, state))
    });
    v1::LimitResult { limit, rule: counter.rule.name().to_owned(), error: None }
}

fn own_limit(record: &OwnLimitRecord, state: &OwnLimitState) -> v1::OwnLimit {
    let entry = |(key, value): &(String, String)| v1::Entry {
        key: key.clone().into_bytes(),
        value: value.clone().into_bytes(),
    };
    let key = v1::Descriptor { entries: record.entries.iter().map(entry).collect(), ..Default::default() };
    let OwnNumbers {
        requests_per_unit,
        unit,
        burst,
        refill_amount,
        max_in_flight,
        overdraft_limit,
        unlimited,
    } = record.numbers;
    v1::OwnLimit {
        domain: record.domain.clone(),
        key: Some(key),
        requests_per_unit,
        burst,
        refill_amount,
        max_in_flight,
        overdraft_limit,
        unlimited,
        expires_after: state.expires_after.and_then(|after| after.try_into().ok()),
        note: record.note.clone(),
        set_by: record.set_by.clone(),
        set_at: Some(prost_types::Timestamp {
            seconds: (record.set_at / 1_000) as i64,
            nanos: (record.set_at % 1_000 * 1_000_000) as i32,
        }),
        version: state.version,
        unit: unit_number(unit),
        set_by_is_claimed: !record.set_by.is_empty() && !record.is_certified,
    }
}
