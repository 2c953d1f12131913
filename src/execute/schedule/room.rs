//! What runs now, and what of this host is left for others.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::{
    digest::Digest,
    graph::TaskId,
    job::Vendor,
    plan::{Place, Prepared},
};

/// What a task needs to run. The default is that of a derived task: one of the host's slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    /// It is a run, and not derived from what runs left.
    pub is_training: bool,
    /// Nothing else may run on this host meanwhile.
    pub exclusive: bool,
    /// A batch system runs it, so it takes nothing of this host.
    pub is_job: bool,
    /// How many jobs the batch system may have at once, where somebody says so.
    pub most_jobs: Option<usize>,
    /// GPUs of this host.
    pub gpus: usize,
}

impl Needs {
    pub fn of(prepared: &Prepared) -> Self {
        let (execution, job) = (&prepared.resolved.execution, prepared.job());
        let most_jobs = execution.max_jobs();
        // A step of an allocation has its nodes to itself, as a run has this host, which may be one
        // of them; where several are wanted, Slurm keeps them apart.
        let is_job = match execution.place {
            Place::Local => false,
            Place::Slurm | Place::Kubernetes => true,
            Place::Allocation => most_jobs.is_some_and(|most| most > 1),
        };
        let has_gpus_here = execution.place == Place::Local && job.vendor != Vendor::Cpu;
        Self {
            is_training: true,
            exclusive: !is_job && !prepared.resolved.share,
            is_job,
            most_jobs: most_jobs.map(|most| usize::try_from(most).unwrap_or(usize::MAX)),
            gpus: if has_gpus_here {
                job.parallelism.num_gpus as usize
            } else {
                0
            },
        }
    }
}

/// A task that runs now.
pub(super) struct Running {
    pub needs: Needs,
    /// The GPUs that it was given.
    gpus: Vec<usize>,
    pub since: Instant,
    pub key: Option<Digest>,
    pub preimage: String,
}

impl Running {
    pub fn new(needs: Needs, gpus: Vec<usize>, key: Option<Digest>, preimage: String) -> Self {
        Self {
            needs,
            gpus,
            since: Instant::now(),
            key,
            preimage,
        }
    }
}

pub(super) struct Room {
    /// Runs at once, and as many other tasks.
    most: usize,
    running: HashMap<TaskId, Running>,
    free_gpus: Vec<usize>,
    /// Until when the host is left idle after a measurement.
    cool_until: Option<Instant>,
}

impl Room {
    pub fn of(jobs: usize, gpus: usize) -> Self {
        Self {
            most: jobs.max(1),
            running: HashMap::new(),
            free_gpus: (0..gpus).collect(),
            cool_until: None,
        }
    }

    /// Does nothing run, here or elsewhere?
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    fn here(&self) -> impl Iterator<Item = &Running> {
        self.running
            .values()
            .filter(|running| !running.needs.is_job)
    }

    fn is_owned(&self) -> bool {
        self.here().any(|running| running.needs.exclusive)
    }

    /// May no other training start on this host?
    pub fn is_full(&self) -> bool {
        let runs = self.here().filter(|running| running.needs.is_training);
        self.is_owned() || runs.count() >= self.most
    }

    /// May a derived task start? They are counted apart from the runs that share the host.
    pub fn takes_derived(&self) -> bool {
        let derived = self.here().filter(|running| !running.needs.is_training);
        !self.is_owned() && derived.count() < self.most
    }

    /// A measurement has just ended.
    pub fn cool_down(&mut self, seconds: f64) {
        let idle = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        self.cool_until = Some(Instant::now() + idle);
    }

    /// May the batch system be given one more job? Without a limit of its own, as many as tasks.
    pub fn takes_job(&self, most: Option<usize>) -> bool {
        let jobs = self.running.len() - self.here().count();
        jobs < most.unwrap_or(self.most).max(1)
    }

    /// Is there what a training needs of a host that is not full?
    pub fn fits(&self, needs: &Needs) -> bool {
        let is_alone = || self.here().next().is_none();
        let is_cooling = || self.cool_until.is_some_and(|until| Instant::now() < until);
        needs.is_job
            || !is_cooling()
                && needs.gpus <= self.free_gpus.len()
                && (!needs.exclusive || is_alone())
    }

    /// Would a run that shares the host start if more of its GPUs were idle?
    fn lacks_gpus(&self, needs: &Needs) -> bool {
        !needs.exclusive && needs.gpus > self.free_gpus.len()
    }

    pub fn take_gpus(&mut self, count: usize) -> Vec<usize> {
        self.free_gpus.drain(..count).collect()
    }

    pub fn enter(&mut self, node: TaskId, running: Running) {
        self.running.insert(node, running);
    }

    /// Gives back what a task had.
    pub fn leave(&mut self, node: TaskId) -> Option<Running> {
        let running = self.running.remove(&node)?;
        self.free_gpus.extend(&running.gpus);
        self.free_gpus.sort_unstable();
        Some(running)
    }
}

/// Which of the queued trainings may start now; asked of them in the order of repeats.
///
/// Those of this host keep their order among themselves, so that none that needs all of it waits
/// for ever; jobs of a batch system pass them. A training that waits for a log, or for GPUs that
/// others of its build have, is passed by others of its repeat alone: whatever disturbs the host
/// for a while is then spread over all cells, and no training waits for more than one round.
pub(super) struct Turns<'a> {
    room: &'a Room,
    is_full: bool,
    /// The repeat of the first training that is passed.
    passed: Option<u32>,
}

impl<'a> Turns<'a> {
    pub fn of(room: &'a Room) -> Self {
        Self {
            room,
            is_full: room.is_full(),
            passed: None,
        }
    }

    /// May nothing of this host start any more, from this repeat on?
    pub fn are_over(&mut self, repeat: u32) -> bool {
        self.is_full |= self.passed.is_some_and(|passed| passed < repeat);
        self.is_full
    }

    /// May this one start?
    pub fn takes(
        &mut self,
        repeat: u32,
        needs: &Needs,
        waits_for_a_log: impl FnOnce() -> bool,
    ) -> bool {
        if needs.is_job {
            return self.room.takes_job(needs.most_jobs) && !waits_for_a_log();
        }
        if self.are_over(repeat) {
            return false;
        }
        if waits_for_a_log() || self.room.lacks_gpus(needs) {
            self.passed.get_or_insert(repeat);
            return false;
        }
        let fits = self.room.fits(needs);
        self.is_full = !fits;
        fits
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Which of the trainings, of a repeat and as many GPUs, run side by side, if those that do end
    /// at once.
    fn started(gpus: usize, trainings: &[(u32, usize)]) -> Vec<Vec<usize>> {
        let mut room = Room::of(8, gpus);
        let mut queue: Vec<usize> = (0..trainings.len()).collect();
        let mut rounds = Vec::new();
        while !queue.is_empty() {
            let mut round = Vec::new();
            loop {
                let mut turns = Turns::of(&room);
                let found = queue.iter().position(|at| {
                    let (repeat, gpus) = trainings[*at];
                    turns.takes(repeat, &needs(false, gpus), || false)
                });
                let Some(found) = found else { break };
                let at = queue.remove(found);
                enter(&mut room, at, needs(false, trainings[at].1));
                round.push(at);
            }
            round.iter().for_each(|at| {
                room.leave(TaskId::new(*at)).unwrap();
            });
            rounds.push(round);
        }
        rounds
    }

    #[test]
    fn idle_gpus_go_to_others_of_the_same_repeat() {
        // Of two models on one and on two GPUs, the two small ones run side by side.
        let trainings = [(1, 1), (1, 2), (1, 1), (1, 2), (2, 1), (2, 2), (2, 1)];
        assert_eq!(
            started(2, &trainings),
            [vec![0, 2], vec![1], vec![3], vec![4, 6], vec![5]]
        );
    }

    proptest! {
        #[test]
        fn every_training_starts_and_no_later_repeat_passes(sizes in prop::collection::vec(1..=4_usize, 1..12), repeats in 1..4_u32) {
            let trainings: Vec<(u32, usize)> = (1..=repeats)
                .flat_map(|repeat| sizes.iter().map(move |gpus| (repeat, *gpus)))
                .collect();
            let rounds = started(4, &trainings);
            let order: Vec<usize> = rounds.concat();
            prop_assert_eq!(order.len(), trainings.len());
            for round in rounds {
                prop_assert!(round.iter().map(|at| trainings[*at].1).sum::<usize>() <= 4);
            }
            for pair in order.windows(2) {
                prop_assert!(trainings[pair[0]].0 <= trainings[pair[1]].0);
            }
        }
    }

    fn needs(exclusive: bool, gpus: usize) -> Needs {
        Needs {
            is_training: true,
            exclusive,
            gpus,
            ..Needs::default()
        }
    }

    fn enter(room: &mut Room, node: usize, needs: Needs) {
        let gpus = room.take_gpus(needs.gpus);
        let running = Running::new(needs, gpus, None, String::new());
        room.enter(TaskId::new(node), running);
    }

    #[test]
    fn a_run_that_owns_the_host_is_alone_on_it() {
        let mut room = Room::of(4, 0);
        enter(&mut room, 0, needs(false, 0));
        assert!(!room.is_full() && !room.fits(&needs(true, 0)));
        room.leave(TaskId::new(0));
        assert!(room.fits(&needs(true, 0)));
        enter(&mut room, 1, needs(true, 0));
        assert!(room.is_full());
    }

    #[test]
    fn runs_that_share_a_host_are_counted_apart_from_derived_tasks() {
        let mut room = Room::of(2, 0);
        enter(&mut room, 0, needs(false, 0));
        enter(&mut room, 1, needs(false, 0));
        assert!(room.is_full() && room.takes_derived());
        room.leave(TaskId::new(0));
        assert!(!room.is_full());
    }

    #[test]
    fn a_gpu_is_given_to_one_run_at_a_time() {
        let mut room = Room::of(4, 3);
        enter(&mut room, 0, needs(false, 2));
        assert!(room.fits(&needs(false, 1)) && !room.fits(&needs(false, 2)));
        let left = room.leave(TaskId::new(0)).unwrap();
        assert_eq!(left.gpus, [0, 1]);
        assert_eq!(room.take_gpus(3), [0, 1, 2]);
    }

    #[test]
    fn jobs_of_a_batch_system_are_counted_apart() {
        let mut room = Room::of(1, 0);
        let job = Needs {
            is_job: true,
            ..Needs::default()
        };
        enter(&mut room, 0, needs(true, 0));
        assert!(room.fits(&job) && room.takes_job(None));
        enter(&mut room, 1, job);
        assert!(!room.takes_job(None) && room.takes_job(Some(2)));
        assert_eq!(room.here().count(), 1);
    }
}
