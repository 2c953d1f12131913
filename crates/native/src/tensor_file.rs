//! Tensors by name in a file: Hugging Face's safetensors format.
//!
//! Reading goes by the `safetensors` crate over a memory map. Writing goes tensor by tensor, so
//! that a model's host needs room for one of them and not for all.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

use memmap2::Mmap;
use safetensors::{
    SafeTensorError, SafeTensors,
    tensor::{Dtype, Metadata},
};
use serde_json::{Map, Value, json};
use tch::{Device, Kind, TchError, Tensor};

use crate::stop::Stop;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A file whose header agrees with its length.
pub struct TensorFile(Mmap);

impl TensorFile {
    pub fn open(path: &Path) -> Result<Self, Cause> {
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Err("it is empty".into());
        }
        // SAFETY: nothing in this program writes to a file that it reads. If another program cuts
        // it off meanwhile, this one is ended by a signal.
        let map = unsafe { Mmap::map(&file) }?;
        SafeTensors::read_metadata(&map).map_err(|error| explained(&error))?;
        Ok(Self(map))
    }

    pub fn names(&self) -> Result<Vec<String>, Cause> {
        let (_, metadata) =
            SafeTensors::read_metadata(&self.0).map_err(|error| explained(&error))?;
        Ok(Metadata::tensors(&metadata).into_keys().collect())
    }

    /// The tensor of this name, which must have this size.
    pub fn tensor(&self, name: &str, size: &[i64]) -> Result<Tensor, Cause> {
        let file = SafeTensors::deserialize(&self.0).map_err(|error| explained(&error))?;
        let view = file
            .tensor(name)
            .map_err(|_| format!("there is no tensor {name}"))?;
        if !matches!(
            view.dtype(),
            Dtype::F32 | Dtype::BF16 | Dtype::F16 | Dtype::F64
        ) {
            return Err(format!(
                "{name} is of type {:?}, not of floating-point numbers",
                view.dtype()
            )
            .into());
        }
        if !view
            .shape()
            .iter()
            .copied()
            .eq(size.iter().map(|n| *n as usize))
        {
            return Err(format!("{name} is {:?}, the model needs {size:?}", view.shape()).into());
        }
        Ok(Tensor::try_from(view)?)
    }
}

fn explained(error: &SafeTensorError) -> Cause {
    match error {
        SafeTensorError::MetadataIncompleteBuffer
        | SafeTensorError::HeaderTooSmall
        | SafeTensorError::InvalidHeaderLength => "it is cut off, or not a safetensors file".into(),
        other => format!("it is not a safetensors file ({other})").into(),
    }
}

/// Name and size of one tensor of a file.
pub type Entry = (String, Vec<i64>);

/// Writes a new file of tensors of `kind` and waits until it is on disk. `values` is asked for each
/// tensor in turn.
pub fn write(
    path: &Path,
    kind: Kind,
    entries: &[Entry],
    mut values: impl FnMut(usize) -> Result<Tensor, TchError>,
) -> Result<(), Stop> {
    let fail = |source: Cause| Stop::File {
        what: "cannot write",
        path: path.to_owned(),
        source,
    };
    let io = |error: io::Error| fail(error.into());
    let mut file = BufWriter::with_capacity(1 << 20, File::create_new(path).map_err(io)?);
    file.write_all(&header(kind, entries)).map_err(io)?;
    for (index, (name, size)) in entries.iter().enumerate() {
        let tensor = values(index)?.f_to_device(Device::Cpu)?.f_contiguous()?;
        if tensor.kind() != kind || tensor.size() != *size {
            return Err(fail(
                format!("{name} is {:?} of {:?}", tensor.size(), tensor.kind()).into(),
            ));
        }
        let length = tensor.numel() * kind.elt_size_in_bytes();
        // SAFETY: a contiguous tensor of the CPU owns this many bytes, and `tensor` lives until
        // they are written.
        let bytes = unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<u8>(), length) };
        file.write_all(bytes).map_err(io)?;
    }
    let file = file.into_inner().map_err(|error| io(error.into_error()))?;
    file.sync_all().map_err(io)
}

/// The length of the header, and the header: where the bytes of each tensor are.
fn header(kind: Kind, entries: &[Entry]) -> Vec<u8> {
    let dtype = if kind == Kind::BFloat16 {
        "BF16"
    } else {
        "F32"
    };
    let mut all = Map::from_iter([("__metadata__".to_owned(), json!({ "format": "pt" }))]);
    let mut start = 0;
    for (name, size) in entries {
        let end = start + size.iter().product::<i64>() as usize * kind.elt_size_in_bytes();
        all.insert(
            name.clone(),
            json!({ "dtype": dtype, "shape": size, "data_offsets": [start, end] }),
        );
        start = end;
    }
    let mut text = Value::Object(all).to_string();
    text.extend(std::iter::repeat_n(
        ' ',
        text.len().next_multiple_of(8) - text.len(),
    ));
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}
