//! Slurm: a job is `sbatch --wrap` of the supervisor, and one question to squeue is for all jobs of a
//! build.

mod queue;

use std::{path::Path, time::Duration};

use super::{
    folder::{SUPERVISOR_LOG, tail_of},
    spec::{ExitKind, RUN_ARGUMENT, RunExit, RunSpec},
    system::{Answer, JOB, JOB_PREFIX, Shown, Submission, System, job_name},
};
use crate::job::Vendor;

pub use queue::Slurm;

impl System for Slurm {
    fn name(&self) -> &'static str {
        "Slurm"
    }

    fn submit(&self, spec: &RunSpec, tprimat: Option<&Path>) -> Result<Submission, String> {
        const ROOM: &str = "Slurm, which takes no more jobs of this user until others have ended";
        if tprimat.is_some() && self.is_full() {
            return Err(ROOM.to_owned());
        }
        let list = || {
            let jobs = self.list(Duration::ZERO);
            jobs.map_err(|why| format!("Slurm, which does not answer: {why}"))
        };
        let before = list()?;
        if let Some((id, _)) = before.iter().find(|(_, job)| job.is_of(spec)) {
            return Ok(Submission::Job(id.clone()));
        }
        let Some(tprimat) = tprimat else {
            return Ok(Submission::NoJob);
        };
        let told = arguments(spec, tprimat);
        let words: Vec<&str> = told.iter().map(String::as_str).collect();
        let why = match self.run("sbatch", &words) {
            // With --parsable: the id, and the cluster's name behind a semicolon where there are
            // several.
            Ok(said) => {
                let id = said.trim().split(';').next().unwrap_or_default();
                return Ok(Submission::Job(id.to_owned()));
            }
            Err(why) if why.is_passing => {
                return Err(format!("Slurm: sbatch does not get through: {why}"));
            }
            Err(why) => why,
        };
        if queue::may_be_full(&why) {
            // The last of them may have ended before the second look, and the first of them may have
            // come after the first one.
            let after = list()?;
            let mut all = before.values().chain(after.values());
            if all.any(|job| job.name.starts_with(JOB_PREFIX) && !job.is_over()) {
                return Err(match self.note_full() {
                    true => format!(
                        "{ROOM} ({why}); execution.<platform>.slurm.max_jobs in config.yaml sets how many jobs a build has at once"
                    ),
                    false => ROOM.to_owned(),
                });
            }
        }
        Ok(Submission::Refused(format!(
            "sbatch refused the job: {why}; execution.<platform>.slurm in config.yaml says what it was asked for"
        )))
    }

    fn state(&self, id: &str, spec: &RunSpec, age: Duration) -> Answer<Shown> {
        self.state_of(id, spec, age).map(|listed| listed.shown(id))
    }

    fn cancel(&self, id: &str, spec: &RunSpec, is_gentle: bool) -> Answer<()> {
        let arguments: &[&str] = match is_gentle {
            // The supervisors are in a step. srun would end it without grace if it got the signal,
            // which --full sends to it as well.
            true if spec.nodes() > 1 => &["--signal=TERM", id],
            true => &["--full", "--signal=TERM", id],
            false => &[id],
        };
        self.run("scancel", arguments).map(drop)
    }

    fn cancels(&self, id: &str, spec: &RunSpec) -> String {
        match id {
            "" => format!("scancel --name={}", job_name(&spec.run_id)),
            id => format!("scancel {id}"),
        }
    }

    fn fate(&self, spec: &RunSpec, shown: Shown, _: bool) -> Option<ExitKind> {
        let out_of_memory = || ExitKind::Killed("Slurm ended the job: out of memory".to_owned());
        shown
            .fate
            .or_else(|| has_oom_kill(&spec.dir).then(out_of_memory))
    }

    /// Slurm forgets its jobs by itself.
    fn let_go(&self, _: &RunSpec, _: Option<&RunExit>) {}
}

/// Did Slurm's own step daemon write into the job's output that the kernel killed a process of the
/// job for lack of memory? The job may end as another state all the same, as where the process was
/// in a step that srun started.
fn has_oom_kill(dir: &Path) -> bool {
    /// What the daemon says at a job's end is at the end of the file.
    const TAIL: u64 = 64 << 10;
    let said = tail_of(&dir.join(SUPERVISOR_LOG), TAIL).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    said.lines().any(|line| {
        let is_of_slurm = line.contains("slurmstepd: ");
        is_of_slurm && (line.contains("oom-kill event") || line.contains("oom_kill event"))
    })
}

/// What sbatch is told. `tprimat`: the program that the job executes.
fn arguments(spec: &RunSpec, tprimat: &Path) -> Vec<String> {
    let mut arguments = vec![
        // Nothing of the caller's shell that the run did not declare.
        "--export=PATH,HOME,LD_LIBRARY_PATH,TPRIMAT_LOCK_DIR".to_owned(),
        format!("--nodes={}", spec.nodes()),
        format!("--ntasks={}", spec.nodes()),
        "--ntasks-per-node=1".into(),
    ];
    if let Some(job) = &spec.job {
        let settings = &job.settings;
        let stated = [
            ("account", &settings.account),
            ("partition", &settings.partition),
            ("qos", &settings.qos),
            ("constraint", &settings.constraint),
            ("time", &settings.time),
        ];
        for (name, value) in stated {
            let value = value.as_ref().filter(|value| !value.is_empty());
            arguments.extend(value.map(|value| format!("--{name}={value}")));
        }
        let gres = match &settings.gres {
            Some(gres) => Some(gres.clone()).filter(|gres| !gres.is_empty()),
            None => (job.vendor != Vendor::Cpu).then(|| format!("gpu:{}", job.num_gpus)),
        };
        arguments.extend(gres.map(|gres| format!("--gres={gres}")));
        arguments.extend(settings.cpus.map(|cpus| format!("--cpus-per-task={cpus}")));
        arguments.extend((settings.exclusive == Some(true)).then(|| "--exclusive".to_owned()));
        arguments.extend(settings.options.iter().flatten().cloned());
    }
    let (program, dir) = (tprimat.to_string_lossy(), spec.dir.to_string_lossy());
    // A NUL cannot be quoted, and no path has one.
    let command = [&*program, RUN_ARGUMENT, &*dir, JOB]
        .map(|word| shlex::try_quote(word).unwrap_or_default());
    // Last, so that no option of the configuration replaces them: without its name and folder
    // nobody finds the job again, and a run that begins again in the same folder would mix two
    // logs.
    arguments.extend([
        "--parsable".to_owned(),
        format!("--output={dir}/supervisor.log"),
        format!("--chdir={dir}"),
        format!("--job-name={}", job_name(&spec.run_id)),
        "--no-requeue".to_owned(),
        format!("--wrap=exec {}", command.join(" ")),
    ]);
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{plan::Slurm as Settings, run::batch::tests::spec};

    fn asked(settings: Settings, vendor: Vendor) -> String {
        arguments(&spec(settings, vendor), Path::new("/bin/tprimat")).join(" ")
    }

    #[test]
    fn what_config_says_reaches_sbatch_and_nothing_else_does() {
        let plain = asked(Settings::default(), Vendor::Nvd);
        assert!(
            plain.contains("--no-requeue")
                && plain.contains("--gres=gpu:4")
                && !plain.contains("--account"),
            "{plain}"
        );
        let cpu = asked(Settings::default(), Vendor::Cpu);
        assert!(!cpu.contains("--gres"), "{cpu}");
        let stated = Settings {
            account: Some("lab".into()),
            partition: Some("h100".into()),
            gres: Some(String::new()),
            time: Some("04:00:00".into()),
            cpus: Some(96),
            exclusive: Some(true),
            options: Some(vec!["--mail-type=END".into(), "--job-name=mine".into()]),
            ..Settings::default()
        };
        let stated = asked(stated, Vendor::Nvd);
        for part in [
            "--account=lab",
            "--partition=h100",
            "--time=04:00:00",
            "--cpus-per-task=96",
            "--exclusive",
            "--mail-type=END",
        ] {
            assert!(stated.contains(part), "{part}: {stated}");
        }
        assert!(!stated.contains("gres"), "{stated}");
        assert!(
            stated.ends_with(
                "--job-name=tprimat-r1 --no-requeue --wrap=exec /bin/tprimat __run /shared/runs/r1 job"
            ),
            "{stated}"
        );
    }
}
