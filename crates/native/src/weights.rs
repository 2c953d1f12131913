//! Where the weights come from: a seed or a safetensors file. Writes logits for comparison with other programs.

use std::{collections::HashMap, path::Path};

use tch::{Device, Kind, TchError, Tensor};

use crate::{parameters::Parameters, stop::Stop};

/// Matrices normal(0, `std`), norms 1, biases 0.
pub fn initialise(parameters: &mut Parameters, seed: u64, std: f64, device: Device) -> Result<(), TchError> {
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
        parameters.write(index, &whole)?;
    }
    parameters.publish()
}

/// Every parameter must be in the file, in its shape, and nothing else.
pub fn load(parameters: &mut Parameters, path: &Path) -> Result<(), Stop> {
    let fail = |source| Stop::File { what: "cannot use the weights of", path: path.to_owned(), source };
    let tensors = Tensor::read_safetensors(path).map_err(|e| fail(e.into()))?;
    let mut tensors: HashMap<String, Tensor> = tensors.into_iter().collect();
    for index in 0..parameters.list.len() {
        let parameter = &parameters.list[index];
        let Some(tensor) = tensors.remove(&parameter.name) else {
            return Err(fail(format!("there is no tensor {}", parameter.name).into()));
        };
        if tensor.size() != parameter.value.size() {
            let (got, want) = (tensor.size(), parameter.value.size());
            return Err(fail(format!("{} is {got:?}, the model needs {want:?}", parameter.name).into()));
        }
        parameters.write(index, &tensor)?;
    }
    if let Some(name) = tensors.keys().min() {
        return Err(fail(format!("the model has no parameter {name}").into()));
    }
    Ok(parameters.publish()?)
}

/// Writes `tokens` and fp32 `logits`.
pub fn dump_logits(tokens: &Tensor, logits: &Tensor, path: &Path) -> Result<(), Stop> {
    let host = |t: &Tensor, kind| t.f_to_device(Device::Cpu)?.f_to_kind(kind)?.f_contiguous();
    let tensors = [("tokens", host(tokens, Kind::Int64)?), ("logits", host(logits, Kind::Float)?)];
    Tensor::write_safetensors(&tensors, path).map_err(|e| Stop::File {
        what: "cannot write",
        path: path.to_owned(),
        source: e.into(),
    })
}

/// libtorch has one random generator for the process: tests that seed it and draw from it take turns.
#[cfg(test)]
pub fn take_turns() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
