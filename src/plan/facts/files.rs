//! The files that runs read or are started in: datasets, tokenizers, images of containers.

use std::path::{Path, PathBuf};

use super::FactBook;
use crate::{
    config::Config,
    error::{Error, Problem, Result},
    host::{ContainerEngine, IMAGES, Lock, Section},
    job::Vendor,
    matrix::Cell,
    plan::{
        CellPlan, Container, DataFile, DataKind, Prepared, Support, data::DataMemo,
        execution::how_to_get,
    },
};

impl FactBook {
    /// Looks up or takes the digests of everything that the cells read.
    pub(in crate::plan) fn gather_data(
        &mut self,
        config: &Config,
        cells: &[Cell],
        plans: &mut [CellPlan],
    ) -> Result<()> {
        self.cache = config.cache_dir(&self.root);
        // Read only where something is looked at: most matrices name neither data nor images.
        let mut memo = None;
        for (cell, plan) in cells.iter().zip(plans) {
            let Support::Ready(prepared) = &mut plan.support else {
                continue;
            };
            if let Some(container) = prepared.resolved.execution.container.clone() {
                let available = prepared.facts.available.is_ok();
                let memo = memo.get_or_insert_with(|| DataMemo::load(&self.cache));
                let of = (&*cell.platform, &*cell.framework, prepared.job().vendor);
                prepared.image = Some(self.image(of, container, available, memo));
            }
            prepared.data = self.data_of(cell, prepared, &mut memo)?;
        }
        memo.iter_mut().for_each(DataMemo::save);
        Ok(())
    }

    /// The dataset and the tokenizer that a cell reads; nothing where its tokens are synthetic.
    fn data_of(
        &mut self,
        cell: &Cell,
        prepared: &Prepared,
        memo: &mut Option<DataMemo>,
    ) -> Result<Vec<DataFile>> {
        let model = &prepared.resolved.job.model;
        // A tokenizer alone does nothing to synthetic tokens.
        let Some(dataset) = &model.dataset else {
            return Ok(Vec::new());
        };
        let mut named = vec![(DataKind::Dataset, dataset)];
        named.extend(
            model
                .tokenizer
                .iter()
                .map(|name| (DataKind::Tokenizer, name)),
        );
        let mut files = Vec::new();
        for (kind, name) in named {
            let path = self.root.join(&prepared.resolved.data_paths[&kind]);
            let key = (cell.platform.to_string(), kind, name.clone());
            match self.data.get(&key) {
                Some(known) if known.path == path => {
                    files.push(known.clone());
                    continue;
                }
                Some(other) => return Err(one_name_of_two(cell, other, &path)),
                None => {}
            }
            let available = prepared.facts.available.as_ref().map_err(String::as_str);
            let file = data_file(
                &self.lock,
                self.allow_drift,
                available,
                (&key.0, kind, name),
                path,
                memo.get_or_insert_with(|| DataMemo::load(&self.cache)),
            )?;
            let locked = self.lock.section(&key.0);
            let is_pinned = locked.is_some_and(|s| s.digest(kind.table(), name).is_some());
            if let (Ok(digest), false) = (&file.digest, is_pinned) {
                let missing = self.missing.entry(key.0.clone()).or_default();
                missing.set_digest(kind.table(), name, *digest);
            }
            self.data.insert(key, file.clone());
            files.push(file);
        }
        Ok(files)
    }

    /// The image of a platform, looked up once; `available`: this host can run the platform, so its
    /// engine is asked.
    fn image(
        &mut self,
        (platform, framework, vendor): (&str, &str, Vendor),
        container: Container,
        available: bool,
        memo: &mut DataMemo,
    ) -> Image {
        let key = (platform.to_owned(), container);
        if let Some(known) = self.images.get(&key) {
            return known.clone();
        }
        let (_, container) = &key;
        let name = container.image.clone();
        let engine = match (
            ContainerEngine::find(container.engine, &self.env),
            container.engine,
        ) {
            // What is a file on a shared file system is known where its engine is not.
            (Err(_), Some(kind)) if kind.file_of(&name, &self.root).is_some() => {
                Ok(ContainerEngine {
                    kind,
                    program: PathBuf::new(),
                })
            }
            (found, _) => found,
        };
        let file = engine
            .as_ref()
            .ok()
            .and_then(|engine| engine.kind.file_of(&name, &self.root));
        let here = match engine {
            Ok(engine) if available => {
                engine.image_digest(&self.env, &name, &self.root, |path| memo.of_file(path))
            }
            Ok(_) => Err("this host cannot run the platform".to_owned()),
            Err(why) => Err(why),
        };
        let help = how_to_get(&name, file.as_deref(), (platform, framework, vendor));
        let locked = self
            .lock
            .section(platform)
            .and_then(|section| section.digest(IMAGES, &name))
            .map(str::to_owned);
        let digest = match (&locked, &here) {
            (_, Ok(Some(found))) if locked.is_none() || (self.allow_drift && available) => {
                Ok(found.clone())
            }
            (Some(locked), _) => Ok(locked.clone()),
            (None, Ok(_)) => Err(format!("there is no image {name} on this host: {help}")),
            (None, Err(why)) => Err(format!(
                "tprimat.lock does not pin the image {name} for {platform}, and {why}"
            )),
        };
        if let (None, Ok(found)) = (&locked, &digest) {
            self.missing
                .entry(platform.to_owned())
                .or_default()
                .set_image(&name, found);
        }
        let image = Image {
            name,
            digest,
            here,
            file,
            help,
            target: format!("{framework} --platform {platform}"),
        };
        self.images.insert(key, image.clone());
        image
    }
}

/// The image that a cell's runs are started in.
#[derive(Clone, Debug)]
pub struct Image {
    pub name: String,
    /// The digest of the content, as keys cover it; or why nothing is known.
    pub digest: Result<String, String>,
    /// What the engine of this host has under the name; or why that cannot be said.
    pub here: Result<Option<String>, String>,
    /// Where it is, if runs open it as a file.
    pub file: Option<PathBuf>,
    /// What brings it here, in words.
    pub help: String,
    /// What `tprimat container build` is told to make one with the recipe's packages.
    pub target: String,
}

impl FactBook {
    /// Sets the digests of a platform's data as this host has it.
    pub(super) fn probe_data(&self, platform: &str, section: &mut Section) -> Result<()> {
        let mut memo = DataMemo::load(&self.cache);
        for ((of, kind, name), file) in &self.data {
            if of == platform && file.is_here {
                section.set_digest(kind.table(), name, memo.digest(*kind, &file.path)?);
            }
        }
        memo.save();
        for ((of, _), image) in &self.images {
            if let (true, Ok(Some(found))) = (of == platform, &image.here) {
                section.set_image(&image.name, found);
            }
        }
        Ok(())
    }
}

fn one_name_of_two(cell: &Cell, known: &DataFile, path: &Path) -> Error {
    let (kind, name, at) = (known.kind.name(), &known.name, &cell.platform);
    let (one, two) = (known.path.display(), path.display());
    let problem = Problem::new(format!(
        "on {at} `{name}` is the name of two {kind}s: {one} and {two}"
    ));
    Error::invalid(problem.help(format!("give one of the models a {kind}_name")))
}

/// `available`: can this host run the platform? What is not pinned is looked at there and nowhere
/// else.
fn data_file(
    lock: &Lock,
    allow_drift: bool,
    available: Result<&usize, &str>,
    (platform, kind, name): (&str, DataKind, &String),
    path: PathBuf,
    memo: &mut DataMemo,
) -> Result<DataFile> {
    let is_here = kind.is_at(&path);
    let not_pinned = |why: &str| {
        Err(format!(
            "tprimat.lock does not pin the {} `{name}` for {platform}, and {why}",
            kind.name()
        ))
    };
    let locked = lock
        .section(platform)
        .and_then(|section| section.digest(kind.table(), name));
    let digest = match (locked, available) {
        (Some(locked), _) if !(allow_drift && available.is_ok() && is_here) => {
            locked.parse().map_err(|_| {
                format!(
                    "tprimat.lock pins no digest for the {} `{name}` of {platform}",
                    kind.name()
                )
            })
        }
        (_, Err(why)) => not_pinned(why),
        (_, Ok(_)) if !is_here => {
            // A hub's name says nothing of the content, which may change there.
            let download = match kind {
                DataKind::Tokenizer => {
                    "; a tokenizer that is on a hub must be downloaded, with its folder as tokenizer_path"
                }
                DataKind::Dataset => "",
            };
            not_pinned(&format!("{} is not here{download}", path.display()))
        }
        (_, Ok(_)) => Ok(memo.digest(kind, &path)?),
    };
    Ok(DataFile {
        kind,
        name: name.clone(),
        path,
        digest,
        is_here,
    })
}
