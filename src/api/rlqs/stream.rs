//! A stream of one client: reports in, actions out. Independent of the transport.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
};

use tollgate_limiter::{
    algorithm::Limit,
    descriptor::Key,
    divider::{ASSIGNMENT_TTL, Assignment, Report, SubscriberId, SubscriberReport, UNCERTAIN, Usage},
    limiter::ActiveView,
    rules::{KeyedDomain, QuotaTerms},
    time::Timestamp,
};
use tonic::Status;

use crate::api::rlqs::{
    QuotaService,
    action::Action,
    bucket::{BucketId, Terms, UNLIMITED_TTL, are_within_bounds, encoded, entries},
    decode::{self, Pair, Reports},
    encode::Response,
    outbox::Outbox,
    stats::Stats,
};

/// A bucket without requests is abandoned after so many reports.
const IDLE_REPORTS_MAX: u32 = 12;
/// The most reports of a message that are sent to the dividers at once.
const REPORTS_MAX: usize = 64;
/// The most requests of a report that count, allowed or denied: more than any client has between two reports.
const REPORTED_MAX: u64 = (1 << 32) - 1;

/// The buckets of a client.
#[derive(Debug)]
pub struct QuotaStream {
    service: Arc<QuotaService>,
    stream: u64,
    pub(super) outbox: Arc<Outbox>,
    domain: Option<Box<str>>,
    numbers: HashMap<BucketId, u32>,
    // By number. A number is used once, because an assignment for it may still be on its way.
    buckets: BTreeMap<u32, Bucket>,
    next_number: u32,
    // Reports that are not sent to the dividers yet.
    reports: Vec<SubscriberReport>,
    // Room for the id that is read.
    pub(super) id: Vec<u8>,
}

/// The rules by which buckets are looked up.
struct ActiveTerms<'v> {
    domain: Option<KeyedDomain<'v>>,
    version: u64,
    passes_all: bool,
}

impl ActiveTerms<'_> {
    /// The terms of the bucket with these pairs. `None` if it is invalid.
    fn of(&self, pairs: &[Pair<'_>]) -> Option<Terms> {
        Some(Terms::of(self.domain, &entries(pairs)?, self.passes_all))
    }
}

#[derive(Debug)]
struct Bucket {
    id: BucketId,
    terms: Terms,
    // The version of the rules that have these terms.
    rules_version: u64,
    // Requests that passed under these terms, as reported.
    allowed: u64,
    idle_reports: u32,
    // Whether the last action that was sent lets requests pass and needs no report to be charged.
    may_be_abandoned: bool,
    // Reports until the assignment of a bucket without a limit is renewed.
    renew_in: u32,
    // The last slice that was sent, and when it ends.
    slice: Option<(u64, Timestamp)>,
}

impl Bucket {
    /// Notes what is sent. False for the renewal of a slice that the client may not have any more: it would begin anew.
    fn note(&mut self, action: Action, now: Timestamp) -> bool {
        let end = now.after(ASSIGNMENT_TTL);
        self.slice = match action {
            Action::Assign(Assignment::Slice(hits)) => Some((hits, end)),
            Action::Assign(Assignment::Renewal(hits)) => {
                let has_it =
                    |(slice, until): &(u64, Timestamp)| *slice == hits && now.after(UNCERTAIN) < *until;
                if !self.slice.as_ref().is_some_and(has_it) {
                    return false;
                }
                Some((hits, end))
            }
            Action::Assign(Assignment::Share(_) | Assignment::Deny)
            | Action::Allow(_)
            | Action::Deny
            | Action::Abandon => None,
        };
        // A slice is charged by reports, which an abandoned bucket does not send.
        self.may_be_abandoned = matches!(action, Action::Allow(_) | Action::Assign(Assignment::Share(_)));
        true
    }
}

/// Reports after which the assignment of a bucket without a limit is renewed: it lasts for twice as many of 5 s.
const RENEWAL_REPORTS: u32 = (UNLIMITED_TTL.as_secs() / 10) as u32;

impl QuotaStream {
    /// Opens a stream of `service` for the client at this address.
    pub fn open(service: Arc<QuotaService>, client: Option<SocketAddr>) -> Result<Self, Status> {
        let (stream, outbox) = service.open(client)?;
        Ok(Self {
            service,
            stream,
            outbox,
            domain: None,
            numbers: HashMap::new(),
            buckets: BTreeMap::new(),
            next_number: 0,
            reports: Vec::new(),
            id: Vec::new(),
        })
    }

    /// Takes a message of the client.
    pub fn receive(&mut self, message: &[u8]) -> Result<(), Status> {
        let malformed = |_| Status::invalid_argument("not a RateLimitQuotaUsageReports message");
        let reports = Reports::decode(message).map_err(malformed)?;
        self.enter(reports.domain)?;
        let service = self.service.clone();
        // Rules that are replaced from here on have another version.
        let version = service.limiter.rules_version();
        let view = service.limiter.view();
        if view.rules().rules().is_none() {
            return Err(Status::unavailable("no rules are loaded yet"));
        }
        let active = self.active_terms(&service, &view, version);
        for report in reports.each() {
            self.report(&active, report);
            if self.reports.len() >= REPORTS_MAX {
                self.send_reports();
            }
        }
        self.send_reports();
        Ok(())
    }

    fn active_terms<'v>(
        &self,
        service: &'v QuotaService,
        view: &'v ActiveView<'_>,
        version: u64,
    ) -> ActiveTerms<'v> {
        ActiveTerms {
            domain: self.domain.as_ref().and_then(|domain| view.rules().domain(domain)),
            version,
            passes_all: service.limiter.modes().shadow_mode,
        }
    }

    /// Binds the stream to its first domain.
    fn enter(&mut self, domain: &[u8]) -> Result<(), Status> {
        let is_known =
            self.domain.as_ref().is_some_and(|known| domain.is_empty() || known.as_bytes() == domain);
        if is_known {
            return Ok(());
        }
        if self.domain.is_some() {
            return Err(Status::invalid_argument("a stream has one domain: open another stream"));
        }
        match str::from_utf8(domain) {
            Ok(domain) if !domain.is_empty() => self.domain = Some(domain.into()),
            Ok(_) | Err(_) => return Err(Status::invalid_argument("the first message has no valid domain")),
        }
        Ok(())
    }

    fn report(&mut self, active: &ActiveTerms<'_>, mut report: decode::Report<'_>) {
        let stats = &self.service.stats;
        for requests in [&mut report.usage.allowed, &mut report.usage.denied] {
            if *requests > REPORTED_MAX {
                *requests = REPORTED_MAX;
                stats.implausible.increase();
            }
        }
        let Usage { allowed, denied, .. } = report.usage;
        stats.reports.increase();
        stats.allowed.add(allowed);
        stats.denied.add(denied);
        // First, because a client must not make the room for its ids large.
        if !are_within_bounds(&report.pairs, &self.service.settings) {
            return stats.invalid.increase();
        }
        report.pairs.sort_unstable();
        encoded(&report.pairs, &mut self.id);
        let known = self.numbers.get(&*self.id).copied();
        let number = match known {
            Some(number) => Some(self.look_up(number, active, &report.pairs)),
            None => self.insert(active, &report.pairs),
        };
        let Some(number) = number else { return };
        if let (Some(Terms::Divide(key, ..)), Some(domain)) =
            (self.buckets.get(&number).map(|bucket| &bucket.terms), &self.domain)
        {
            let entries = || entries(&report.pairs).unwrap_or_default();
            let requests = allowed.saturating_add(denied);
            self.service.limiter.metrics().count_quota(domain, entries, *key, requests);
        }
        // A client that has a bucket over another stream reports it with the time since its last report.
        let resumes = known.is_none() && report.seconds > 0;
        self.update(
            number,
            if resumes { Report::Resumed(report.usage) } else { Report::Usage(report.usage) },
        );
    }

    /// The number of a known bucket under the active rules.
    fn look_up(&mut self, number: u32, active: &ActiveTerms<'_>, pairs: &[Pair<'_>]) -> u32 {
        let is_current = |bucket: &Bucket| bucket.rules_version == active.version;
        if self.buckets.get(&number).is_none_or(is_current) {
            return number;
        }
        let Some(terms) = active.of(pairs) else { return number };
        self.change_terms(number, terms, active.version)
    }

    /// The number of a new bucket; `None` if it is invalid, or if there are too many.
    fn insert(&mut self, active: &ActiveTerms<'_>, pairs: &[Pair<'_>]) -> Option<u32> {
        let QuotaService { settings, stats, .. } = &*self.service;
        let Some(terms) = active.of(pairs) else {
            stats.invalid.increase();
            return None;
        };
        if self.numbers.len() >= settings.max_stream_buckets
            || !Stats::take(&stats.buckets, settings.max_buckets)
        {
            stats.too_many.increase();
            return None;
        }
        Some(self.number(Bucket {
            id: BucketId::from(&*self.id),
            terms,
            rules_version: active.version,
            allowed: 0,
            idle_reports: 0,
            may_be_abandoned: false,
            renew_in: 0,
            slice: None,
        }))
    }

    fn number(&mut self, bucket: Bucket) -> u32 {
        self.next_number += 1;
        self.numbers.insert(bucket.id.clone(), self.next_number);
        self.buckets.insert(self.next_number, bucket);
        self.next_number
    }

    /// Takes the usage of a bucket.
    fn update(&mut self, number: u32, report: Report) {
        let Some(bucket) = self.buckets.get_mut(&number) else { return };
        let (Report::Usage(usage) | Report::Resumed(usage)) = report else { return };
        bucket.idle_reports =
            if usage == Usage::default() { bucket.idle_reports.saturating_add(1) } else { 0 };
        let report = report.after(bucket.allowed);
        bucket.allowed = bucket.allowed.saturating_add(usage.allowed);
        let is_due = bucket.renew_in == 0;
        bucket.renew_in = if is_due { RENEWAL_REPORTS } else { bucket.renew_in - 1 };
        let counted = match &bucket.terms {
            Terms::Divide(key, limit, part) => Some((*key, limit.clone(), *part, report)),
            Terms::Count(key, limit) if usage.allowed > 0 => {
                Some((*key, limit.clone(), QuotaTerms::default(), Report::Counted(usage.allowed)))
            }
            Terms::Count(..) | Terms::Allow | Terms::Deny => None,
        };
        let action = match &bucket.terms {
            Terms::Deny => Some(Action::Deny),
            Terms::Allow | Terms::Count(..) => is_due.then_some(Action::Allow(UNLIMITED_TTL)),
            Terms::Divide(..) => None,
        };
        let is_idle = bucket.may_be_abandoned && bucket.idle_reports >= IDLE_REPORTS_MAX;
        let abandon = is_idle.then_some(Action::Abandon);
        action.into_iter().chain(abandon).for_each(|action| self.outbox.add(number, action));
        if let Some((key, limit, part, report)) = counted {
            self.queue(number, key, limit, part, report);
        }
    }

    fn queue(&mut self, bucket: u32, key: Key, limit: Limit, terms: QuotaTerms, report: Report) {
        let id = SubscriberId { replica: self.service.replica, stream: self.stream, bucket };
        self.reports.push(SubscriberReport { key, limit, id, terms, report });
    }

    fn send_reports(&mut self) {
        let reports = std::mem::take(&mut self.reports);
        if !reports.is_empty() {
            self.service.report(reports);
        }
    }

    /// Sets the terms of a bucket, and returns its number. Under another limit it begins anew.
    fn change_terms(&mut self, number: u32, terms: Terms, version: u64) -> u32 {
        let Some(bucket) = self.buckets.get_mut(&number) else { return number };
        bucket.rules_version = version;
        if bucket.terms == terms {
            return number;
        }
        let before = std::mem::replace(&mut bucket.terms, terms);
        match (before, &bucket.terms) {
            (Terms::Divide(before, ..), Terms::Divide(key, limit, part)) if before == *key => {
                let (limit, part) = (limit.clone(), *part);
                self.queue(number, before, limit, part, Report::Limit);
                return number;
            }
            (Terms::Divide(key, limit, part), _) => self.queue(number, key, limit, part, Report::End),
            (_, _) => {}
        }
        self.outbox.remove(number);
        let Some(bucket) = self.buckets.remove(&number) else { return number };
        self.number(Bucket { allowed: 0, may_be_abandoned: false, renew_in: 0, slice: None, ..bucket })
    }

    /// Looks all buckets up in the new rules.
    fn apply_rules(&mut self) {
        let service = self.service.clone();
        let version = service.limiter.rules_version();
        let view = service.limiter.view();
        let active = self.active_terms(&service, &view, version);
        let ids: Vec<(u32, BucketId)> =
            self.buckets.iter().map(|(number, bucket)| (*number, bucket.id.clone())).collect();
        for (number, id) in ids {
            let Some(terms) = active.of(&decode::pairs_of_id(&id)) else { continue };
            let Some(bucket) = self.buckets.get(&number) else { continue };
            let needs_report = match (&bucket.terms, &terms) {
                (before, after) if before == after => false,
                (Terms::Divide(before, ..), Terms::Divide(key, ..)) => before != key,
                (_, _) => true,
            };
            let number = self.change_terms(number, terms, version);
            if needs_report {
                self.update(number, Report::Usage(Usage::default()));
            }
        }
        self.send_reports();
    }

    /// The next frame for the client.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Vec<u8>> {
        self.outbox.register(cx.waker());
        if self.outbox.take_new_rules() {
            self.apply_rules();
        }
        let (mut response, now) = (Response::new(), self.service.now());
        loop {
            let actions = self.outbox.take(response.room());
            if actions.is_empty() {
                break;
            }
            for (number, action) in actions {
                self.send(number, action, &mut response, now);
            }
        }
        self.send_reports();
        if response.is_empty() { Poll::Pending } else { Poll::Ready(response.finish()) }
    }

    /// Adds an action to a response, unless it is out of date.
    fn send(&mut self, number: u32, action: Action, response: &mut Response, now: Timestamp) {
        let Some(bucket) = self.buckets.get_mut(&number) else { return };
        if !bucket.note(action, now) {
            return;
        }
        response.add(&bucket.id, action);
        if action == Action::Abandon {
            self.service.stats.abandoned.increase();
            self.forget(number);
        } else {
            self.service.stats.assignments.increase();
        }
    }

    /// Removes a bucket.
    fn forget(&mut self, number: u32) {
        if let Some(bucket) = self.buckets.remove(&number) {
            self.numbers.remove(&bucket.id);
            Stats::give_back(&self.service.stats.buckets, 1);
            if let Terms::Divide(key, limit, part) = bucket.terms {
                self.queue(number, key, limit, part, Report::End);
            }
        }
    }
}

impl Drop for QuotaStream {
    fn drop(&mut self) {
        let numbers: Vec<u32> = self.buckets.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.forget(number));
        self.send_reports();
        self.service.close(self.stream);
    }
}
