//! A stream of one client: reports in, actions out. Independent of the transport.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
};

use tollgate_limiter::{
    descriptor::Entry,
    divider::{Assignment, SubscriberId, Usage},
    limiter::ActiveView,
};
use tonic::Status;

use crate::api::rlqs::{
    QuotaService,
    action::Action,
    bucket::{BucketId, Terms, UNLIMITED_TTL, encoded, entries},
    decode::{Pair, Report, Reports},
    encode::Response,
    outbox::Outbox,
    stats::Stats,
};

/// A bucket without requests is abandoned after so many reports.
const IDLE_REPORTS_MAX: u32 = 12;

/// The buckets of a client.
#[derive(Debug)]
pub struct QuotaStream {
    service: Arc<QuotaService>,
    stream: u64,
    pub(super) outbox: Arc<Outbox>,
    domain: Option<Box<str>>,
    numbers: HashMap<BucketId, u32>,
    // By number. `None`: the number is free.
    buckets: Vec<Option<Bucket>>,
    free: Vec<u32>,
    // Room for the id that is read.
    id: Vec<u8>,
}

#[derive(Debug)]
struct Bucket {
    id: BucketId,
    terms: Terms,
    idle_reports: u32,
    // Whether the last action lets requests pass and needs no report to be charged.
    may_be_abandoned: bool,
    // Reports until the assignment of a bucket without a limit is renewed.
    renew_in: u32,
}

/// Reports after which the assignment of a bucket without a limit is renewed: it lasts for twice as many of 5 s.
const RENEWAL_REPORTS: u32 = (UNLIMITED_TTL.as_secs() / 10) as u32;

impl QuotaStream {
    /// Opens a stream of `service` for the client at this address.
    pub fn open(service: Arc<QuotaService>, client: Option<SocketAddr>) -> Result<Self, Status> {
        let (stream, outbox) = service.open(client)?;
        let (domain, numbers) = (None, HashMap::new());
        Ok(Self {
            service,
            stream,
            outbox,
            domain,
            numbers,
            buckets: Vec::new(),
            free: Vec::new(),
            id: Vec::new(),
        })
    }

    /// Takes a message of the client.
    pub fn receive(&mut self, message: &[u8]) -> Result<(), Status> {
        let malformed = |_| Status::invalid_argument("not a RateLimitQuotaUsageReports message");
        let reports = Reports::decode(message).map_err(malformed)?;
        self.enter(reports.domain)?;
        let service = self.service.clone();
        let view = service.limiter.view();
        if view.rules().rules().is_none() {
            return Err(Status::unavailable("no rules are loaded yet"));
        }
        for report in reports.each() {
            self.report(&view, report);
        }
        Ok(())
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

    fn report(&mut self, view: &ActiveView<'_>, mut report: Report<'_>) {
        let (service, Usage { allowed, denied }) = (self.service.clone(), report.usage);
        service.stats.reports.increase();
        service.stats.allowed.add(allowed);
        service.stats.denied.add(denied);
        let Some(entries) = entries(&mut report.pairs, &service.settings) else {
            service.stats.invalid.increase();
            return;
        };
        let terms = self.terms(view, &entries);
        if let (Terms::Divide(key, _), Some(domain)) = (&terms, &self.domain) {
            service.limiter.metrics().count_quota(domain, &entries, *key, allowed.saturating_add(denied));
        }
        let mut id = std::mem::take(&mut self.id);
        encoded(&entries, &mut id);
        let number = self.numbers.get(&*id).copied().or_else(|| self.insert(&id));
        self.id = id;
        let Some(number) = number else {
            service.stats.too_many.increase();
            return;
        };
        self.update(number, terms, report.usage);
    }

    fn terms(&self, view: &ActiveView<'_>, entries: &[Entry<'_>]) -> Terms {
        let domain = self.domain.as_ref().and_then(|domain| view.rules().domain(domain));
        Terms::of(domain, entries, self.service.limiter.modes().shadow_mode)
    }

    /// The number of a new bucket; `None` if there are too many.
    fn insert(&mut self, id: &[u8]) -> Option<u32> {
        let Self { service, numbers, buckets, free, .. } = self;
        let settings = &service.settings;
        if numbers.len() >= settings.max_stream_buckets
            || !Stats::take(&service.stats.buckets, settings.max_buckets)
        {
            return None;
        }
        let number = free.pop().unwrap_or_else(|| {
            buckets.push(None);
            // The settings bound it far below.
            (buckets.len() - 1) as u32
        });
        let id = BucketId::from(id);
        numbers.insert(id.clone(), number);
        buckets[number as usize] =
            Some(Bucket { id, terms: Terms::Allow, idle_reports: 0, may_be_abandoned: false, renew_in: 0 });
        Some(number)
    }

    /// Takes the usage of a bucket, under the terms of now.
    fn update(&mut self, number: u32, terms: Terms, usage: Usage) {
        let (service, now) = (self.service.clone(), self.service.now());
        let id = SubscriberId { stream: self.stream, bucket: number };
        self.change_terms(number, terms);
        let Some(bucket) = &mut self.buckets[number as usize] else { return };
        bucket.idle_reports =
            if usage == Usage::default() { bucket.idle_reports.saturating_add(1) } else { 0 };
        let is_due = bucket.renew_in == 0;
        bucket.renew_in = if is_due { RENEWAL_REPORTS } else { bucket.renew_in - 1 };
        match &bucket.terms {
            Terms::Allow | Terms::Count(..) => {
                if let Terms::Count(key, limit) = &bucket.terms {
                    service.memory.grants().charge(*key, limit, usage.allowed, now);
                }
                bucket.may_be_abandoned = true;
                if is_due {
                    self.outbox.add(number, Action::Allow(UNLIMITED_TTL));
                }
            }
            Terms::Deny => self.outbox.add(number, Action::Deny),
            Terms::Divide(key, limit) => {
                let assignments = service.dividers.report(*key, limit, id, usage, now);
                let own =
                    assignments.iter().rfind(|(other, _)| *other == id).map(|(_, assignment)| *assignment);
                // A slice is charged by reports, which an abandoned bucket does not send.
                bucket.may_be_abandoned = matches!(own, Some(Assignment::Share(_)));
                if let Some(assignment) = own {
                    self.outbox.add(number, Action::Assign(assignment));
                }
                service.deliver(assignments.into_iter().filter(|(other, _)| *other != id).collect());
            }
        }
        self.abandon_if_idle(number);
    }

    /// Sets the terms of a bucket. Under other terms it begins anew.
    fn change_terms(&mut self, number: u32, terms: Terms) {
        let Some(bucket) = &mut self.buckets[number as usize] else { return };
        if bucket.terms == terms {
            return;
        }
        let id = SubscriberId { stream: self.stream, bucket: number };
        if let Terms::Divide(before, _) = &bucket.terms
            && !matches!(&terms, Terms::Divide(key, _) if key == before)
        {
            self.service.dividers.leave(*before, id);
        }
        (bucket.terms, bucket.renew_in, bucket.may_be_abandoned) = (terms, 0, false);
    }

    fn abandon_if_idle(&mut self, number: u32) {
        let is_idle = |bucket: &Bucket| bucket.may_be_abandoned && bucket.idle_reports >= IDLE_REPORTS_MAX;
        if self.buckets[number as usize].as_ref().is_some_and(is_idle) {
            self.outbox.remove(number);
            self.outbox.add(number, Action::Abandon);
        }
    }

    /// Looks all buckets up in the new rules.
    fn apply_rules(&mut self) {
        let service = self.service.clone();
        let view = service.limiter.view();
        for number in 0..self.buckets.len() as u32 {
            let Some(id) = self.buckets[number as usize].as_ref().map(|bucket| bucket.id.clone()) else {
                continue;
            };
            let mut pairs = pairs_of(&id);
            let Some(entries) = entries(&mut pairs, &service.settings) else { continue };
            let terms = self.terms(&view, &entries);
            let Some(bucket) = &self.buckets[number as usize] else { continue };
            match (&bucket.terms, &terms) {
                (before, after) if before == after => {}
                (Terms::Divide(before, _), Terms::Divide(key, limit)) if before == key => {
                    let assignments = service.dividers.set_limit(*key, limit, service.now());
                    self.change_terms(number, terms);
                    service.deliver(assignments);
                }
                (_, _) => self.update(number, terms, Usage::default()),
            }
        }
    }

    /// The next frame for the client.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Vec<u8>> {
        self.outbox.register(cx.waker());
        if self.outbox.take_new_rules() {
            self.apply_rules();
        }
        let mut response: Option<Response> = None;
        while response.as_ref().is_none_or(Response::has_room)
            && let Some((number, action)) = self.outbox.pop()
        {
            let Some(bucket) = &self.buckets[number as usize] else { continue };
            response.get_or_insert_with(Response::new).add(&bucket.id, action);
            if action == Action::Abandon {
                self.service.stats.abandoned.increase();
                self.forget(number);
            } else {
                self.service.stats.assignments.increase();
            }
        }
        response.map_or(Poll::Pending, |response| Poll::Ready(response.finish()))
    }

    /// Removes a bucket for which an abandon action is sent.
    fn forget(&mut self, number: u32) {
        if let Some(bucket) = self.buckets[number as usize].take() {
            self.numbers.remove(&bucket.id);
            self.free.push(number);
            Stats::give_back(&self.service.stats.buckets, 1);
            if let Terms::Divide(key, _) = bucket.terms {
                self.service.dividers.leave(key, SubscriberId { stream: self.stream, bucket: number });
            }
        }
    }
}

impl Drop for QuotaStream {
    fn drop(&mut self) {
        for number in 0..self.buckets.len() as u32 {
            self.forget(number);
        }
        self.service.close(self.stream);
    }
}

/// The pairs of an encoded id.
fn pairs_of(id: &[u8]) -> Vec<Pair<'_>> {
    Report::of_id(id).map(|report| report.pairs.into_vec()).unwrap_or_default()
}
