//! What brings a run into the queue: sbatch, its arguments, and what follows from its answer.

use std::sync::atomic::Ordering;

use super::{
    JOB, Job, Standing, WITHDRAWN, job_path, node,
    queue::{Refusal, SlurmError},
};
use crate::{
    error::{Error, Result},
    files::{self, Durability},
    job::Vendor,
    run::{
        folder::lock,
        spec::{JobSpec, RUN_ARGUMENT},
    },
};

impl Job {
    /// One attempt at it. A submission that nobody heard the answer of has happened, or has not:
    /// Slurm is asked first.
    pub(super) fn submit(&self) -> Result<Standing> {
        if !self.is_attached && self.slurm.is_full() {
            self.tell_full(None);
            return Ok(Standing::Silent);
        }
        let name = self.name();
        match self.slurm.find(&name) {
            Ok(Some(id)) => return self.submitted(id),
            Ok(None) => {}
            Err(why) => {
                self.tell(format!("Slurm, which does not answer: {why}"));
                return Ok(Standing::Silent);
            }
        }
        if self.is_attached {
            // A job that comes to be seen later runs nothing: the run is withdrawn from it.
            return Ok(match node::take(&self.spec.dir, WITHDRAWN) {
                Ok(true) => Standing::NeverWas,
                Ok(false) => Standing::Silent,
                Err(why) => {
                    self.tell_unreachable(&why);
                    Standing::Silent
                }
            });
        }
        let script = self.spec.dir.join("job.sh");
        let line = [
            self.tprimat.to_string_lossy(),
            RUN_ARGUMENT.into(),
            self.spec.dir.to_string_lossy(),
            JOB.into(),
        ];
        let line = shlex::try_join(line.iter().map(AsRef::as_ref))
            .map_err(|e| Error::failed(e.to_string()))?;
        files::write_atomically(
            &script,
            format!("#!/bin/sh\nexec {line}\n").as_bytes(),
            Durability::Plain,
        )?;
        let mut arguments = self.arguments(&name);
        arguments.push(script.to_string_lossy().into_owned());
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        match self.slurm.run("sbatch", &words) {
            // With --parsable: the id, and the cluster's name behind a semicolon where there are
            // several.
            Ok(said) => {
                self.submitted(said.trim().split(';').next().unwrap_or_default().to_owned())
            }
            Err(why) if why.is_passing() => {
                self.tell(format!("Slurm: sbatch does not get through: {why}"));
                Ok(Standing::Silent)
            }
            Err(why) => Ok(match why.refusal() {
                Refusal::TooManyJobs { is_named } => self.refused_for_limit(&why, is_named),
                Refusal::Lasting => refused(&why),
            }),
        }
    }

    /// The user has as many jobs as Slurm allows. Their ends make room, so where there are none the
    /// refusal is final. The last of them may have ended between the submission and the look at the
    /// queue, so one more attempt is made.
    fn refused_for_limit(&self, why: &SlurmError, is_named: bool) -> Standing {
        match self.slurm.has_other_jobs(&self.name(), is_named) {
            Ok(true) => {
                self.was_refused_alone.store(false, Ordering::SeqCst);
                self.slurm.note_full(true);
                self.tell_full(Some(why));
                Standing::Silent
            }
            Ok(false) if self.was_refused_alone.swap(true, Ordering::SeqCst) => refused(why),
            Ok(false) => Standing::Silent,
            Err(why) => {
                self.tell(format!("Slurm, which does not answer: {why}"));
                Standing::Silent
            }
        }
    }

    /// Says that the run waits until Slurm takes more jobs; once for a build with the reason and with
    /// what keeps a build below the limit.
    fn tell_full(&self, why: Option<&SlurmError>) {
        const ROOM: &str = "Slurm, which takes no more jobs of this user until others have ended";
        if self.waits_for_room.swap(true, Ordering::SeqCst) {
            return;
        }
        match why.filter(|_| self.slurm.tells_of_limit()) {
            Some(why) => self.tell(format!(
                "{ROOM} ({why}); execution.<platform>.slurm.max_jobs in config.yaml sets how many jobs a build has at once"
            )),
            None => self.tell(ROOM.to_owned()),
        }
    }

    pub(super) fn submitted(&self, id: String) -> Result<Standing> {
        self.slurm.note_full(false);
        files::write_atomically(&job_path(&self.spec.dir), id.as_bytes(), Durability::Synced)?;
        self.tell(format!("Slurm job {id} (submitted)"));
        *lock(&self.id) = Some(id);
        Ok(Standing::There)
    }

    fn arguments(&self, name: &str) -> Vec<String> {
        let dir = self.spec.dir.display();
        let mut arguments = vec![
            // Nothing of the caller's shell that the run did not declare.
            "--export=PATH,HOME,LD_LIBRARY_PATH,TPRIMAT_LOCK_DIR".to_owned(),
            format!("--nodes={}", self.spec.nodes()),
            format!("--ntasks={}", self.spec.nodes()),
            "--ntasks-per-node=1".into(),
        ];
        // Last, so that no option of the configuration replaces them: without its name and folder
        // nobody finds the job again, and a run that begins again in the same folder would mix two
        // logs.
        let ours = [
            "--parsable".to_owned(),
            format!("--output={dir}/supervisor.log"),
            format!("--chdir={dir}"),
            format!("--job-name={name}"),
            "--no-requeue".to_owned(),
        ];
        let Some(JobSpec {
            vendor,
            num_gpus,
            settings,
            ..
        }) = &self.spec.job
        else {
            arguments.extend(ours);
            return arguments;
        };
        let stated = [
            ("account", &settings.account),
            ("partition", &settings.partition),
            ("qos", &settings.qos),
            ("constraint", &settings.constraint),
            ("time", &settings.time),
        ];
        for (name, value) in stated {
            arguments.extend(value.as_ref().map(|value| format!("--{name}={value}")));
        }
        let gres = match &settings.gres {
            Some(gres) => Some(gres.clone()).filter(|gres| !gres.is_empty()),
            None => (*vendor != Vendor::Cpu).then(|| format!("gpu:{num_gpus}")),
        };
        arguments.extend(gres.map(|gres| format!("--gres={gres}")));
        arguments.extend(settings.cpus.map(|cpus| format!("--cpus-per-task={cpus}")));
        arguments.extend(settings.exclusive.then(|| "--exclusive".to_owned()));
        arguments.extend(settings.options.iter().cloned());
        arguments.extend(ours);
        arguments
    }
}

fn refused(why: &SlurmError) -> Standing {
    Standing::Refused(format!(
        "sbatch refused the job: {why}; execution.<platform>.slurm in config.yaml says what it was asked for"
    ))
}

#[cfg(test)]
mod tests {
    use super::super::tests::job;
    use super::*;
    use crate::plan::Slurm as Settings;

    #[test]
    fn what_config_says_reaches_sbatch_and_nothing_else_does() {
        let plain = job(Settings::default(), Vendor::Nvd)
            .arguments("tprimat-r1")
            .join(" ");
        assert!(
            plain.contains("--no-requeue")
                && plain.contains("--gres=gpu:4")
                && !plain.contains("--account"),
            "{plain}"
        );
        assert!(
            !job(Settings::default(), Vendor::Cpu)
                .arguments("x")
                .join(" ")
                .contains("--gres")
        );
        let stated = Settings {
            account: Some("lab".into()),
            partition: Some("h100".into()),
            gres: Some(String::new()),
            time: Some("04:00:00".into()),
            cpus: Some(96),
            exclusive: true,
            options: vec!["--mail-type=END".into(), "--job-name=mine".into()],
            ..Settings::default()
        };
        let stated = job(stated, Vendor::Nvd).arguments("x").join(" ");
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
        assert!(stated.ends_with("--job-name=x --no-requeue"), "{stated}");
    }
}
