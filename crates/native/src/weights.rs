//! Where the weights come from: a seed, or safetensors files as Hugging Face lays them out. Writes
//! logits for comparison with other programs.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tch::{Device, Kind, TchError, Tensor};

use crate::{
    parameters::{Parameters, State},
    stop::Stop,
    tensor_file::TensorFile,
};

/// Matrices normal(0, `std`), norms 1, biases 0.
pub fn initialise(
    parameters: &mut Parameters,
    seed: u64,
    std: f64,
    device: Device,
) -> Result<(), TchError> {
    tch::manual_seed(seed as i64);
    if let Device::Cuda(_) = device {
        tch::Cuda::manual_seed_all(seed);
    }
    for index in 0..parameters.list.len() {
        let parameter = &parameters.list[index];
        // Whole also where ranks share it: all of them draw the same numbers and keep their parts.
        let mut whole = Tensor::f_empty(parameter.value.size(), (parameters.state_kind(), device))?;
        let _ = match whole.dim() {
            0 | 1 if parameter.name.ends_with(".bias") => whole.f_zero_()?,
            0 | 1 => whole.f_fill_(1.0)?,
            _ => whole.f_normal_(0.0, std)?,
        };
        parameters.write(State::Weights, index, &whole)?;
    }
    parameters.publish()
}

/// A model's only file of weights.
const MODEL: &str = "model.safetensors";
/// Says which of several files has which tensor.
const INDEX: &str = "model.safetensors.index.json";

/// Every parameter must be there, in its shape, and nothing else. `path` is a safetensors file, the
/// index of several, or a folder with either under Hugging Face's name.
pub fn load(parameters: &mut Parameters, path: &Path) -> Result<(), Stop> {
    let (files, mut places) = places(path)?;
    let mut open: Option<(usize, TensorFile)> = None;
    for index in 0..parameters.list.len() {
        let parameter = &parameters.list[index];
        let place = places
            .remove(&parameter.name)
            .ok_or_else(|| unusable(path, format!("there is no tensor {}", parameter.name)))?;
        let file = match open.take() {
            Some((of, file)) if of == place => file,
            _ => TensorFile::open(&files[place]).map_err(|e| unusable(&files[place], e))?,
        };
        let tensor = file
            .tensor(&parameter.name, &parameter.value.size())
            .map_err(|e| unusable(&files[place], e))?;
        open = Some((place, file));
        parameters.write(State::Weights, index, &tensor)?;
    }
    if let Some(name) = places.keys().next() {
        return Err(unusable(path, format!("the model has no parameter {name}")));
    }
    Ok(parameters.publish()?)
}

/// The files, and for each tensor's name the number of its file.
fn places(path: &Path) -> Result<(Vec<PathBuf>, BTreeMap<String, usize>), Stop> {
    let path = match path.is_dir() {
        true if path.join(MODEL).exists() => path.join(MODEL),
        true if path.join(INDEX).exists() => path.join(INDEX),
        true => {
            let message = format!("the folder has neither {MODEL} nor {INDEX}");
            return Err(unusable(path, message));
        }
        false => path.to_owned(),
    };
    if path.extension().is_none_or(|extension| extension != "json") {
        let names = TensorFile::open(&path)
            .and_then(|file| file.names())
            .map_err(|e| unusable(&path, e))?;
        let places = names.into_iter().map(|name| (name, 0)).collect();
        return Ok((vec![path], places));
    }
    let text = fs::read(&path).map_err(|e| unusable(&path, e))?;
    let index: Value = serde_json::from_slice(&text).map_err(|e| unusable(&path, e))?;
    let map = index["weight_map"]
        .as_object()
        .ok_or_else(|| unusable(&path, "it has no table `weight_map`"))?;
    let (mut files, mut places) = (Vec::new(), BTreeMap::new());
    for (tensor, name) in map {
        let name = name.as_str().unwrap_or_default();
        if Path::new(name).file_name() != Some(name.as_ref()) {
            let message =
                format!("it says that {tensor} is in {name:?}, which is no file beside it");
            return Err(unusable(&path, message));
        }
        let file = path.with_file_name(name);
        let place = files.iter().position(|f| *f == file).unwrap_or_else(|| {
            files.push(file);
            files.len() - 1
        });
        places.insert(tensor.clone(), place);
    }
    Ok((files, places))
}

fn unusable(path: &Path, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Stop {
    Stop::File {
        what: "cannot use the weights of",
        path: path.to_owned(),
        source: source.into(),
    }
}

/// Writes `tokens` and fp32 `logits`.
pub fn dump_logits(tokens: &Tensor, logits: &Tensor, path: &Path) -> Result<(), Stop> {
    let host = |t: &Tensor, kind| t.f_to_device(Device::Cpu)?.f_to_kind(kind)?.f_contiguous();
    let tensors = [
        ("tokens", host(tokens, Kind::Int64)?),
        ("logits", host(logits, Kind::Float)?),
    ];
    Tensor::write_safetensors(&tensors, path).map_err(|e| Stop::File {
        what: "cannot write",
        path: path.to_owned(),
        source: e.into(),
    })
}

/// libtorch has one random generator for the process: tests that seed it and draw from it take
/// turns.
#[cfg(test)]
pub fn take_turns() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
