//! A stream of one client: reports in, actions out. Independent of the transport.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use tollgate_counter::{
    algorithm::{Limit, QuotaTerms},
    descriptor::{Entry, Key},
    resilience::CallerOrigin,
    time::Timestamp,
};
use tollgate_limiter::limiter::ActiveView;
use tollgate_store::divider::{Assignment, DividerReport, SubscriberId, SubscriberReport, SubscriberUsage};
use tonic::Status;

use crate::{
    bucket::{
        ActiveTerms, BucketId, BucketTerms, CurrentTerms, DIVISION_BYTES, PART_MAX, QuotaAction, QuotaBucket,
        UNLIMITED_TTL, encoded, is_assignable,
    },
    decode::{self, BucketReports},
    encode::Response,
    ending::{EndedStream, end},
    memory::{BucketOwner, CallerNumber},
    outbox::Outbox,
    service::QuotaService,
};

/// A bucket without requests is abandoned after so many reports.
const IDLE_REPORTS_MAX: u32 = 12;
/// The most requests of a report that count, allowed or denied: more than any client has between two reports.
const REPORTED_MAX: u64 = (1 << 32) - 1;

/// The room that a stream keeps after buckets are forgotten, as a multiple of the others.
const ROOM_MAX: usize = 4;

/// The buckets of a client.
#[derive(Debug)]
pub struct QuotaStream {
    service: Arc<QuotaService>,
    owner: BucketOwner,
    pub(super) outbox: Arc<Outbox>,
    domain: Option<Box<str>>,
    pub(super) numbers: HashMap<BucketId, u32>,
    // By number. A number is used once, because an assignment for it may still be on its way.
    buckets: BTreeMap<u32, QuotaBucket>,
    next_number: u32,
    // Buckets from this number on may have other terms in the active rules.
    look_up_from: Option<u32>,
    // Reports that are not sent to the dividers yet.
    reports: Vec<SubscriberReport>,
    // Room for the id that is read.
    pub(super) id: Vec<u8>,
}

/// Reports after which the assignment of a bucket without a limit is renewed: it lasts for twice as many of 5 s.
const RENEWAL_REPORTS: u32 = (UNLIMITED_TTL.as_secs() / 10) as u32;

impl QuotaStream {
    /// Opens a stream of `service` for the client at this address.
    pub fn open(
        service: Arc<QuotaService>,
        origin: &CallerOrigin,
        client: Option<SocketAddr>,
    ) -> Result<Self, Status> {
        let (owner, outbox) = service.open(CallerNumber::new(origin), client)?;
        Ok(Self {
            service,
            owner,
            outbox,
            domain: None,
            numbers: HashMap::new(),
            buckets: BTreeMap::new(),
            next_number: 0,
            look_up_from: None,
            reports: Vec::new(),
            id: Vec::new(),
        })
    }

    /// Takes a message of the client.
    pub fn receive(&mut self, message: &[u8]) -> Result<(), Status> {
        self.begin(message)?;
        let mut from = 0;
        while let Some(next) = self.take(message, from) {
            from = next;
        }
        Ok(())
    }

    /// Examines a message of the client. Its reports are taken by [`QuotaStream::take`].
    pub fn begin(&mut self, message: &[u8]) -> Result<(), Status> {
        let malformed = |_| Status::invalid_argument("not a RateLimitQuotaUsageReports message");
        let domain = BucketReports::examine(message).map_err(malformed)?;
        self.enter(domain)?;
        if self.service.limiter.view().rules().rules().is_none() {
            return Err(Status::unavailable("no rules are loaded yet"));
        }
        Ok(())
    }

    /// Takes the reports of a part of a message that was begun, from this byte on. Returns where the next part begins.
    pub fn take(&mut self, message: &[u8], from: usize) -> Option<usize> {
        let service = self.service.clone();
        // Rules that are replaced from here on have another version.
        let version = service.limiter.rules_version();
        let view = service.limiter.view();
        let active = self.active_terms(&service, &view, version);
        let mut reports = BucketReports::from(message, from, service.settings.max_pairs);
        for report in reports.by_ref().take(PART_MAX) {
            self.report(&active, report);
        }
        self.send_reports();
        // Its room is in no bound of the stream.
        self.id = Vec::new();
        reports.next_part()
    }

    fn active_terms<'v>(
        &self,
        service: &'v QuotaService,
        view: &'v ActiveView<'_>,
        version: u64,
    ) -> ActiveTerms<'v> {
        ActiveTerms {
            view,
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
        let domain = str::from_utf8(domain).ok().filter(|domain| !domain.is_empty());
        let domain =
            domain.ok_or_else(|| Status::invalid_argument("the first message has no valid domain"))?;
        self.service.take_memory(self.owner.caller, domain.len())?;
        self.domain = Some(domain.into());
        Ok(())
    }

    fn report(&mut self, active: &ActiveTerms<'_>, mut report: decode::BucketReport<'_>) {
        let stats = &self.service.stats;
        for requests in [&mut report.usage.allowed, &mut report.usage.denied] {
            if *requests > REPORTED_MAX {
                *requests = REPORTED_MAX;
                stats.implausible.increase();
            }
        }
        let SubscriberUsage { allowed, denied, .. } = report.usage;
        stats.reports.increase();
        stats.allowed.add(allowed);
        stats.denied.add(denied);
        if report.pairs.len() > self.service.settings.max_pairs {
            return stats.invalid.increase();
        }
        report.pairs.sort_unstable_by_key(|pair| (pair.key, pair.value));
        // First, because a client must not make the room for its ids large.
        let is_assignable = is_assignable(&report.pairs, &self.service.settings);
        if is_assignable {
            encoded(&report.pairs, &mut self.id);
        }
        let known = self.numbers.get(&*self.id).copied().filter(|_| is_assignable);
        let number = match known {
            Some(number) => self.look_up(number, active, &report.pairs),
            None => {
                let Some(current) = active.terms_of(&report.pairs) else { return stats.invalid.increase() };
                let inserted = if is_assignable { self.insert(current) } else { Err(current.terms) };
                match inserted {
                    Ok(number) => number,
                    Err(terms) => return self.charge(&terms, &report.pairs, report.usage),
                }
            }
        };
        if let Some(BucketTerms::Divide(key, ..)) = self.buckets.get(&number).map(|bucket| &bucket.terms) {
            self.count(*key, &report.pairs, report.usage);
        }
        // A client that has a bucket over another stream reports it with the time since its last report.
        let resumes = known.is_none() && report.seconds > 0;
        self.update(
            number,
            if resumes { DividerReport::Resumed(report.usage) } else { DividerReport::Usage(report.usage) },
        );
    }

    /// The number of a known bucket under the active rules.
    fn look_up(&mut self, number: u32, active: &ActiveTerms<'_>, pairs: &[Entry<'_>]) -> u32 {
        let is_current = |bucket: &QuotaBucket| bucket.is_of_rules(active.version);
        if self.buckets.get(&number).is_none_or(is_current) {
            return number;
        }
        let Some(current) = active.terms_of(pairs) else { return number };
        self.change_terms(number, current)
    }

    /// Counts the requests for the counter of `key` at the client.
    fn count(&self, key: Key, pairs: &[Entry<'_>], usage: SubscriberUsage) {
        let Some(domain) = &self.domain else { return };
        let requests = usage.allowed.saturating_add(usage.denied);
        self.service.limiter.metrics().count_quota(domain, || pairs, key, requests);
    }

    /// Charges what has passed in a bucket that is not assigned anything.
    fn charge(&mut self, terms: &BucketTerms, pairs: &[Entry<'_>], usage: SubscriberUsage) {
        self.service.stats.unassigned.increase();
        let (BucketTerms::Divide(key, limit, _) | BucketTerms::Count(key, limit)) = terms else { return };
        self.count(*key, pairs, usage);
        if usage.allowed > 0 {
            // No bucket has this number.
            self.queue(0, *key, limit.clone(), QuotaTerms::default(), DividerReport::Counted(usage.allowed));
        }
    }

    /// The number of a new bucket with the id that is read. Returns the terms if there are too many buckets.
    fn insert(&mut self, current: CurrentTerms) -> Result<u32, BucketTerms> {
        let QuotaService { memory, stats, .. } = &*self.service;
        let bytes = QuotaBucket::bytes(self.id.len()) + DIVISION_BYTES;
        if !memory.take(self.owner.caller, bytes, self.service.now()) {
            stats.too_many.increase();
            return Err(current.terms);
        }
        stats.buckets.fetch_add(1, Ordering::Relaxed);
        Ok(self.number(QuotaBucket::new(BucketId::from(&*self.id), current)))
    }

    fn number(&mut self, bucket: QuotaBucket) -> u32 {
        self.next_number += 1;
        self.numbers.insert(bucket.id.clone(), self.next_number);
        self.buckets.insert(self.next_number, bucket);
        self.next_number
    }

    /// Takes the usage of a bucket.
    fn update(&mut self, number: u32, report: DividerReport) {
        let Some(bucket) = self.buckets.get_mut(&number) else { return };
        let (DividerReport::Usage(usage) | DividerReport::Resumed(usage)) = report else { return };
        bucket.idle_reports =
            if usage == SubscriberUsage::default() { bucket.idle_reports.saturating_add(1) } else { 0 };
        let report = report.after(bucket.allowed);
        bucket.allowed = bucket.allowed.saturating_add(usage.allowed);
        let is_due = bucket.renew_in == 0;
        bucket.renew_in = if is_due { RENEWAL_REPORTS } else { bucket.renew_in - 1 };
        let counted = match &bucket.terms {
            BucketTerms::Divide(key, limit, part) => Some((*key, limit.clone(), *part, report)),
            BucketTerms::Count(key, limit) if usage.allowed > 0 => {
                Some((*key, limit.clone(), QuotaTerms::default(), DividerReport::Counted(usage.allowed)))
            }
            BucketTerms::Count(..) | BucketTerms::Allow | BucketTerms::Deny => None,
        };
        let action = match &bucket.terms {
            BucketTerms::Deny => Some(QuotaAction::Assign(Assignment::Deny)),
            BucketTerms::Allow | BucketTerms::Count(..) => {
                is_due.then_some(QuotaAction::Allow(UNLIMITED_TTL))
            }
            BucketTerms::Divide(..) => None,
        };
        let is_idle = bucket.may_be_abandoned && bucket.idle_reports >= IDLE_REPORTS_MAX;
        let abandon = is_idle.then_some(QuotaAction::Abandon);
        action.into_iter().chain(abandon).for_each(|action| self.outbox.add(number, action));
        if let Some((key, limit, part, report)) = counted {
            self.queue(number, key, limit, part, report);
        }
    }

    fn queue(&mut self, bucket: u32, key: Key, limit: Limit, terms: QuotaTerms, report: DividerReport) {
        let id = SubscriberId { replica: self.service.replica, stream: self.owner.stream, bucket };
        self.reports.push(SubscriberReport { key, limit, id, terms, report });
    }

    fn send_reports(&mut self) {
        let reports = std::mem::take(&mut self.reports);
        if !reports.is_empty() {
            self.service.report(reports);
        }
    }

    /// Sets the terms of a bucket, and returns its number. Under another limit it begins anew.
    fn change_terms(&mut self, number: u32, current: CurrentTerms) -> u32 {
        let Some(bucket) = self.buckets.get_mut(&number) else { return number };
        let Some(before) = bucket.set_terms(current) else { return number };
        match (before, &bucket.terms) {
            (BucketTerms::Divide(before, ..), BucketTerms::Divide(key, limit, part)) if before == *key => {
                let limit = limit.clone();
                let part = *part;
                self.queue(number, before, limit, part, DividerReport::Limit);
                return number;
            }
            (BucketTerms::Divide(key, limit, part), _) => {
                self.queue(number, key, limit, part, DividerReport::End)
            }
            (_, _) => {}
        }
        self.outbox.remove(number);
        let Some(bucket) = self.buckets.remove(&number) else { return number };
        self.number(bucket.anew())
    }

    /// Looks some of the buckets up in new rules, if there are any. Returns whether there are more to look up.
    pub fn apply_rules(&mut self) -> bool {
        if self.outbox.take_new_rules() {
            self.look_up_from = Some(0);
        }
        let Some(from) = self.look_up_from else { return false };
        let service = self.service.clone();
        let version = service.limiter.rules_version();
        let view = service.limiter.view();
        let active = self.active_terms(&service, &view, version);
        let some = self.buckets.range(from..).take(PART_MAX);
        let ids: Vec<(u32, BucketId)> = some.map(|(number, bucket)| (*number, bucket.id.clone())).collect();
        // A bucket that begins anew has a number behind all others, and is looked up once more.
        self.look_up_from = ids.last().map(|(number, _)| number + 1);
        for (number, id) in ids {
            self.apply_rules_to(number, &id, &active);
        }
        self.send_reports();
        self.look_up_from.is_some()
    }

    fn apply_rules_to(&mut self, number: u32, id: &[u8], active: &ActiveTerms<'_>) {
        let Some(bucket) = self.buckets.get(&number).filter(|bucket| !bucket.is_of_rules(active.version))
        else {
            return;
        };
        let Some(current) = active.terms_of(&decode::pairs_of_id(id)) else { return };
        let needs_report = match (&bucket.terms, &current.terms) {
            (before, after) if before == after => false,
            (BucketTerms::Divide(before, ..), BucketTerms::Divide(key, ..)) => before != key,
            (_, _) => true,
        };
        let number = self.change_terms(number, current);
        if needs_report {
            self.update(number, DividerReport::Usage(SubscriberUsage::default()));
        }
    }

    /// The next frame for the client. [`QuotaStream::apply_rules`] may be due when the task is woken.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Vec<u8>> {
        self.outbox.waker.register(cx.waker());
        if self.outbox.has_new_rules() {
            // They came after the last look.
            cx.waker().wake_by_ref();
        }
        let mut response = Response::new();
        let now = self.service.now();
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
    fn send(&mut self, number: u32, action: QuotaAction, response: &mut Response, now: Timestamp) {
        let Some(bucket) = self.buckets.get_mut(&number) else { return };
        if !bucket.note(action, now) {
            return;
        }
        response.add(&bucket.id, action);
        if action == QuotaAction::Abandon {
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
            // The room of those that are forgotten is given back with them.
            let left = self.numbers.len();
            if self.numbers.capacity() > ROOM_MAX * (left + PART_MAX) {
                self.numbers.shrink_to(2 * left);
            }
            self.reports.extend(end(&self.service, self.owner, number, bucket));
        }
    }
}

impl Drop for QuotaStream {
    fn drop(&mut self) {
        self.send_reports();
        let service = self.service.clone();
        let owner = self.owner;
        let domain = self.domain.as_ref().map_or(0, |domain| domain.len());
        EndedStream { service, owner, domain, buckets: mem::take(&mut self.buckets) }.run();
    }
}
