//! Requests whose counters other replicas hold.

use smallvec::SmallVec;

use crate::{
    cluster::{Cluster, ForwardPolicy, OpenForwards, RemoteDecision, RemoteDecisions},
    limiter::{
        Answer, Descriptor, Request, Snapshot, Status, Unanswered, answer, applying, metrics::Checked,
        plan::Plan,
    },
    rules::Domain,
};

impl Snapshot<'_> {
    /// The same as [`Snapshot::decide`] for a request whose counters other replicas hold, and that came over
    /// `connection`.
    pub async fn decide_afar(
        &self,
        request: &Request<'_>,
        connection: &OpenForwards,
    ) -> Result<Answer<'_>, Unanswered> {
        let Some(domain) = self.domain_of(request)? else {
            return Ok(Answer::without_limits(request.descriptors.len()));
        };
        let Some(cluster) = &self.limiter.cluster else { return Err(Unanswered::Elsewhere) };
        if let [descriptor @ Descriptor { limit: None, .. }] = request.descriptors
            && let Some((usual, check)) = self.check_alone(domain, descriptor, request.patience)
        {
            let wish = Status::of_rule(usual.rule).wish();
            let RemoteDecision { decision, charged, degraded } =
                cluster.decide_one(&check, wish, request.patience, connection).await?;
            let checked = Checked { check: &check, decision: &decision, charged };
            let modes = self.limiter.modes;
            self.limiter.metrics.count_alone(domain, descriptor, usual, checked, modes);
            let mut answer = Answer::of_one(modes, usual.rule, &decision);
            answer.statuses[0].degraded = degraded;
            return Ok(answer);
        }
        // On the heap, so that the usual call has no room for it.
        Box::pin(self.ask_together(cluster, domain, request, connection)).await
    }

    async fn ask_together<'s>(
        &'s self,
        cluster: &Cluster,
        domain: &'s Domain,
        request: &Request<'_>,
        connection: &OpenForwards,
    ) -> Result<Answer<'s>, Unanswered> {
        let applies = applying(domain, request);
        let plan = Plan::draw(domain, request.descriptors, &applies, &self.secret);
        let modes = self.limiter.modes;
        let refused = |decisions: &[_]| answer::refuses(modes, &plan.statuses, &plan.places, decisions);
        let wishes: SmallVec<[ForwardPolicy; 2]> =
            plan.places.iter().chain(&plan.tried).map(|place| plan.statuses[*place].wish()).collect();
        let RemoteDecisions { decisions, degraded } =
            cluster.decide(&plan.checks, &wishes, request.patience, connection, refused).await?;
        Ok(self.told(domain, request, &applies, plan, &decisions, &degraded))
    }
}
