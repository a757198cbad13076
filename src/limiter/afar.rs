//! Requests whose counters other replicas hold.

use std::slice;

use smallvec::SmallVec;

use crate::{
    cluster::{Afar, Alone, Cluster, Wish},
    limiter::{
        Answer, Request, Snapshot, Status, Unanswered, alone::Lone, answer, applying, metrics::Checked,
        plan::Plan,
    },
    rules::Domain,
};

impl Snapshot<'_> {
    /// The same as [`Snapshot::decide`] for a request whose counters other replicas hold.
    pub async fn decide_afar(&self, request: &Request<'_>) -> Result<Answer<'_>, Unanswered> {
        let Some(domain) = self.domain_of(request)? else {
            return Ok(Answer::without_limits(request.descriptors.len()));
        };
        let Some(cluster) = &self.limiter.cluster else { return Err(Unanswered::Elsewhere) };
        match self.lone(domain, request) {
            Some(lone) => Ok(self.ask_alone(cluster, domain, request, lone).await),
            // On the heap, so that the usual call has no room for it.
            None => Ok(Box::pin(self.ask_together(cluster, domain, request)).await),
        }
    }

    async fn ask_alone<'s>(
        &'s self,
        cluster: &Cluster,
        domain: &'s Domain,
        request: &Request<'_>,
        Lone { descriptor, matched, check }: Lone<'_, 's>,
    ) -> Answer<'s> {
        let mut status = Status::of_rule(matched.rule);
        let Alone { decision, charged, degraded } =
            cluster.decide_alone(&check, status.wish(), request.patience).await;
        status.degraded = degraded;
        let statuses = SmallVec::from_iter([status]);
        let answer = Answer::fold(self.limiter.modes, statuses, &[0], slice::from_ref(&decision));
        let checked = Checked { check: &check, decision: &decision, charged };
        self.limiter.metrics.count_alone(domain, descriptor, &matched, checked, &answer);
        answer
    }

    async fn ask_together<'s>(
        &'s self,
        cluster: &Cluster,
        domain: &'s Domain,
        request: &Request<'_>,
    ) -> Answer<'s> {
        let applies = applying(domain, request);
        let plan = Plan::draw(domain, request.descriptors, &applies, &self.limiter.secret.get());
        let modes = self.limiter.modes;
        let refused = |decisions: &[_]| answer::refuses(modes, &plan.statuses, &plan.places, decisions);
        let wishes: SmallVec<[Wish; 2]> =
            plan.places.iter().chain(&plan.tried).map(|place| plan.statuses[*place].wish()).collect();
        let Afar { decisions, degraded } =
            cluster.decide(&plan.checks, &wishes, request.patience, refused).await;
        self.told(domain, request, &applies, plan, &decisions, &degraded)
    }
}
