//! The backups of the slots that are owned here: which their backup owners lack, and which are on their way.
//!
//! Of each slot at most one backup is on its way to one receiver: it waits in the queue, is being sent, or is not
//! answered yet. Meanwhile further changes of the slot gather in memory, and the next backup has all of them. So a slow
//! or stalled link delays backups, and they take no more memory.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tollgate_counter::time::Timestamp;
use tollgate_store::{Epoch, HoldOutcome, Memory, OwnLimitRefusal, Slot};

use crate::{
    member::MemberId,
    message::{
        Message,
        check::CheckReply,
        slot::{SlotGrants, Version, VersionedSlot},
    },
    node::{context::Context, forwarding::OpenCheck},
};

/// How much earlier than they are due backups are sent.
const EARLY_MAX: Duration = Duration::from_millis(5);

/// The backups of the slots that are owned here.
#[derive(Debug)]
pub(super) struct BackupSender {
    memory: Arc<Memory>,
    /// How often changed counters are sent to the backup owner; `None` for never.
    interval: Option<Duration>,
    slots: Vec<BackupState>,
    /// The slots whose backup waits for room on the way to its receiver, each once.
    pub(super) waiting: BTreeMap<MemberId, VecDeque<Slot>>,
    /// The encoded bytes of the backups that each receiver has not answered yet, at most.
    unanswered: BTreeMap<MemberId, usize>,
    /// Changes whose callers are answered when the backup owner has them.
    unanswered_changes: Vec<UnansweredChange>,
    backed_up_at: Timestamp,
    /// A slot that is owned here may have no backup, also because owners or backup owners may have changed.
    pub(super) may_lack_backups: bool,
}

#[derive(Clone, Debug, Default)]
struct BackupState {
    /// The last backup since this replica owns the slot.
    sent: Option<SentBackup>,
    is_waiting: bool,
}

/// A change whose caller is answered when the backup owner has it.
#[derive(Debug)]
struct UnansweredChange {
    slot: Slot,
    open: OpenCheck,
    reply: CheckReply,
    /// When the caller is answered nevertheless.
    until: Timestamp,
    state: ChangeState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangeState {
    /// No backup has the change yet.
    Unsent,
    /// The last backup has the change.
    Sent,
    /// The caller of the change can be answered.
    Answerable(BackedUp),
}

/// Whether the backup owner has a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackedUp {
    Yes,
    No,
}

/// A backup that was sent.
#[derive(Clone, Copy, Debug)]
struct SentBackup {
    version: Version,
    receiver: MemberId,
    /// The encoded bytes of the backup, at most.
    bytes: usize,
    next: NextBackup,
}

impl SentBackup {
    fn unanswered_bytes(&self) -> usize {
        match self.next {
            NextBackup::Free => 0,
            NextBackup::Blocked | NextBackup::Due => self.bytes,
        }
    }
}

/// What happens with the next backup to the same receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextBackup {
    /// The receiver has answered: the next backup is sent when it is due.
    Free,
    /// The next backup waits for the answer.
    Blocked,
    /// The next backup is sent with the answer, because it was due before.
    Due,
}

impl BackupSender {
    pub(super) fn new(memory: Arc<Memory>, interval: Option<Duration>, now: Timestamp) -> Self {
        if interval.is_some() {
            memory.track_changes();
        }
        Self {
            slots: vec![BackupState::default(); memory.slots()],
            memory,
            interval,
            waiting: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            unanswered_changes: Vec::new(),
            backed_up_at: now,
            may_lack_backups: true,
        }
    }

    /// This replica has become the owner of the slot, or is it no longer.
    pub(super) fn reset(&mut self, slot: Slot) {
        self.set_sent(slot, None);
    }

    /// The encoded bytes of the backups that `receiver` has not answered yet, at most.
    pub(super) fn unanswered_bytes(&self, receiver: MemberId) -> usize {
        self.unanswered.get(&receiver).copied().unwrap_or_default()
    }

    fn set_sent(&mut self, slot: Slot, sent: Option<SentBackup>) {
        self.may_lack_backups |= sent.is_none();
        if sent.is_none() {
            self.change_state(slot, ChangeState::Sent, ChangeState::Unsent);
        }
        if let Some(sent) = sent {
            *self.unanswered.entry(sent.receiver).or_default() += sent.unanswered_bytes();
        }
        if let Some(former) = std::mem::replace(&mut self.slots[slot.index()].sent, sent)
            && let Some(bytes) = self.unanswered.get_mut(&former.receiver)
        {
            *bytes -= former.unanswered_bytes();
        }
    }

    /// Forgets which backups were sent, because all counters are discarded.
    pub(super) fn discard(&mut self) {
        self.may_lack_backups = true;
        self.slots.fill(BackupState::default());
        self.waiting.clear();
        self.unanswered.clear();
    }

    /// Answers the caller of a change of `slot` when the backup owner has it, or when half of its time is over.
    pub(super) fn answer_when_backed_up(
        &mut self,
        slot: Slot,
        open: OpenCheck,
        reply: CheckReply,
        now: Timestamp,
    ) {
        let until = now.after(open.deadline.since(now) / 2);
        let state = ChangeState::Unsent;
        self.unanswered_changes.push(UnansweredChange { slot, open, reply, until, state });
    }

    /// Whether callers of changes are not answered yet.
    pub(super) fn has_unanswered(&self) -> bool {
        !self.unanswered_changes.is_empty()
    }

    fn change_state(&mut self, slot: Slot, from: ChangeState, to: ChangeState) {
        let of_slot = |change: &&mut UnansweredChange| change.slot == slot && change.state == from;
        self.unanswered_changes.iter_mut().filter(of_slot).for_each(|change| change.state = to);
    }

    /// The backup owner has answered the last backup of `slot`.
    pub(super) fn answer_sent(&mut self, slot: Slot, backed_up: BackedUp) {
        self.change_state(slot, ChangeState::Sent, ChangeState::Answerable(backed_up));
    }

    /// Two replicas have all changes of `slot`, or there is only one.
    pub(super) fn answer(&mut self, slot: Slot, backed_up: BackedUp) {
        self.change_state(slot, ChangeState::Unsent, ChangeState::Answerable(backed_up));
        self.answer_sent(slot, backed_up);
    }

    /// Takes the changes that can be answered, with their replies.
    pub(super) fn take_answerable(&mut self, now: Timestamp) -> Vec<(OpenCheck, CheckReply)> {
        let backed_up = |change: &UnansweredChange| match change.state {
            ChangeState::Answerable(backed_up) => Some(backed_up),
            ChangeState::Unsent | ChangeState::Sent if change.until <= now => Some(BackedUp::No),
            ChangeState::Unsent | ChangeState::Sent => None,
        };
        // Most often there is none.
        let answerable = self.unanswered_changes.extract_if(.., |change| backed_up(change).is_some());
        let answered = answerable.map(|mut change| {
            if backed_up(&change) == Some(BackedUp::No)
                && let CheckReply::Decided { outcome, .. } = &mut change.reply
                && let HoldOutcome::OwnLimit(changed) = &mut outcome.hold
            {
                changed.refusal = Some(OwnLimitRefusal::NotBackedUp);
            }
            (change.open, change.reply)
        });
        answered.collect()
    }

    /// Takes the checks of all changes that are not answered yet.
    pub(super) fn take_unanswered(&mut self) -> Vec<OpenCheck> {
        std::mem::take(&mut self.unanswered_changes).into_iter().map(|change| change.open).collect()
    }

    /// The session with `member` has ended: what was not answered is lost.
    pub(super) fn member_departed(&mut self, member: MemberId) {
        self.may_lack_backups = true;
        let is_lost = |(slot, state): (usize, &mut BackupState)| {
            let sent = state.sent.take_if(|sent| sent.receiver == member);
            // At most 65,536, so it fits.
            sent.map(|_| Slot(slot as u16))
        };
        let lost: Vec<Slot> = self.slots.iter_mut().enumerate().filter_map(is_lost).collect();
        if self.has_unanswered() {
            for slot in lost {
                self.change_state(slot, ChangeState::Sent, ChangeState::Unsent);
            }
        }
        self.unanswered.remove(&member);
        for slot in self.waiting.remove(&member).unwrap_or_default() {
            self.slots[slot.index()].is_waiting = false;
        }
    }

    /// Whether backups are sent periodically.
    pub(super) fn is_periodic(&self) -> bool {
        self.interval.is_some()
    }

    /// Whether the backups of changed slots are due. They are then due again after the interval. A tick that comes a
    /// little early does not leave them to the next one.
    pub(super) fn take_due(&mut self, now: Timestamp) -> bool {
        let is_due = self.due_at().is_some_and(|due_at| due_at <= now.after(EARLY_MAX));
        if is_due {
            self.backed_up_at = now;
        }
        is_due
    }

    /// When the backups of changed slots are due, if they are sent periodically.
    pub(super) fn due_at(&self) -> Option<Timestamp> {
        self.interval.map(|interval| self.backed_up_at.after(interval))
    }

    /// The receiver of the last backup since this replica owns the slot.
    #[cfg(test)]
    pub(super) fn receiver(&self, slot: Slot) -> Option<MemberId> {
        self.slots[slot.index()].sent.map(|sent| sent.receiver)
    }

    /// Whether `to` was sent a backup of the slot at this epoch.
    pub(super) fn is_sent_to(&self, slot: Slot, epoch: Epoch, to: MemberId) -> bool {
        let is_same = |sent: SentBackup| sent.version.epoch == epoch && sent.receiver == to;
        self.slots[slot.index()].sent.is_some_and(is_same)
    }

    /// Whether the last backup at this epoch is on its way to `to`. Then the next one follows its answer.
    pub(super) fn must_await_answer(&mut self, slot: Slot, epoch: Epoch, to: MemberId) -> bool {
        let is_same = self.is_sent_to(slot, epoch, to);
        let sent = self.slots[slot.index()].sent.as_mut().filter(|_| is_same);
        sent.is_some_and(|sent| match sent.next {
            NextBackup::Free => false,
            NextBackup::Blocked | NextBackup::Due => {
                sent.next = NextBackup::Due;
                true
            }
        })
    }

    /// The backup of the slot waits for room on the way to `to`.
    pub(super) fn wait(&mut self, slot: Slot, to: MemberId) {
        let state = &mut self.slots[slot.index()];
        if !state.is_waiting {
            state.is_waiting = true;
            self.waiting.entry(to).or_default().push_back(slot);
        }
    }

    /// Takes the slot that has waited longest for room on the way to `to`.
    pub(super) fn next_waiting(&mut self, to: MemberId) -> Option<Slot> {
        let waiting = self.waiting.get_mut(&to)?;
        let slot = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&to);
        }
        let slot = slot?;
        self.slots[slot.index()].is_waiting = false;
        Some(slot)
    }

    /// Sends the changes that the backup owner lacks.
    pub(super) fn send(
        &mut self,
        slot: Slot,
        version: Version,
        to: MemberId,
        grants: SlotGrants,
        cx: &mut Context<'_>,
    ) {
        let is_known = self.is_sent_to(slot, version.epoch, to);
        let sent = self.slots[slot.index()].sent;
        let after = sent.filter(|_| is_known).map(|former| former.version.seq);
        let changes = if is_known { self.memory.changes(slot) } else { self.memory.whole(slot) };
        let version = Version { seq: changes.seq, ..version };
        let copy = VersionedSlot { version, contents: Arc::new(changes.data), grants };
        cx.out.stats.backed_up += copy.contents.len() as u64;
        let bytes = cx.out.send(to, Message::Backup { slot, copy, after });
        self.change_state(slot, ChangeState::Unsent, ChangeState::Sent);
        self.set_sent(slot, Some(SentBackup { version, receiver: to, bytes, next: NextBackup::Blocked }));
    }

    /// `from` has answered the backup at this version. Returns what was to happen with the next one; `None` if it was not
    /// the last one.
    pub(super) fn answered(&mut self, from: MemberId, slot: Slot, version: Version) -> Option<NextBackup> {
        let is_last = |sent: &SentBackup| sent.version == version && sent.receiver == from;
        let sent = self.slots[slot.index()].sent.filter(is_last)?;
        self.set_sent(slot, Some(SentBackup { next: NextBackup::Free, ..sent }));
        Some(sent.next)
    }

    /// The backup owner lacks the version that the last backup builds on. Returns whether it is still the backup owner.
    pub(super) fn receive_base_missing(&mut self, from: MemberId, slot: Slot) -> bool {
        let is_receiver = self.slots[slot.index()].sent.is_some_and(|sent| sent.receiver == from);
        if is_receiver {
            self.set_sent(slot, None);
        }
        is_receiver
    }
}
