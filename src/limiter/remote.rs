//! Requests with counters of other owners.

use smallvec::SmallVec;

use crate::{
    cluster::{Cluster, ForwardPolicy, OpenForwards, RemoteDecision, RemoteDecisions},
    limiter::{
        ActiveView, Answer, Descriptor, LimiterError, Request, Status, answer, applied_limits,
        metrics::CheckOutcome, plan::Plan,
    },
    rules::Domain,
};

impl ActiveView<'_> {
    /// The same as [`ActiveView::decide`] for a request with counters of other owners, received over `connection`.
    pub async fn decide_remote(
        &self,
        request: &Request<'_>,
        connection: &OpenForwards,
    ) -> Result<Answer<'_>, LimiterError> {
        let Some(domain) = self.domain_of(request)? else {
            return Ok(Answer::without_limits(request.descriptors.len()));
        };
        let Some(cluster) = &self.limiter.cluster else { return Err(LimiterError::Remote) };
        if let [descriptor @ Descriptor { limit: None, .. }] = request.descriptors
            && let Some((usual, check)) = self.single_check(domain, descriptor, request.timeout)
        {
            let wish = Status::of_rule(usual.rule).wish();
            let RemoteDecision { decision, charged, degraded } =
                cluster.decide_one(&check, wish, request.timeout, connection).await?;
            let checked = CheckOutcome { check: &check, decision: &decision, charged };
            let modes = self.limiter.modes;
            self.limiter.metrics.count_single(domain, descriptor, usual, checked, modes);
            let mut answer = Answer::of_one(modes, usual.rule, &decision);
            answer.statuses[0].degraded = degraded;
            return Ok(answer);
        }
        // Boxed, so that the future of the common path stays small.
        Box::pin(self.decide_remote_set(cluster, domain, request, connection)).await
    }

    async fn decide_remote_set<'s>(
        &'s self,
        cluster: &Cluster,
        domain: &'s Domain,
        request: &Request<'_>,
        connection: &OpenForwards,
    ) -> Result<Answer<'s>, LimiterError> {
        let applied = applied_limits(domain, request);
        let plan = Plan::new(domain, request.descriptors, &applied, &self.secret);
        let modes = self.limiter.modes;
        let refused =
            |decisions: &[_]| answer::refuses(modes, &plan.statuses, &plan.status_indexes, decisions);
        let wishes: SmallVec<[ForwardPolicy; 2]> = plan
            .status_indexes
            .iter()
            .chain(&plan.candidate_indexes)
            .map(|index| plan.statuses[*index].wish())
            .collect();
        let RemoteDecisions { decisions, degraded } =
            cluster.decide(&plan.checks, &wishes, request.timeout, connection, refused).await?;
        Ok(self.counted_answer(domain, request, &applied, plan, &decisions, &degraded))
    }
}
