//! Collectives between NVIDIA GPUs through NCCL, on a stream of their own beside the one that
//! computes.
//!
//! The library is the one in PyTorch's wheel, which libtorch_cuda has loaded. Events order the two
//! streams; the host never waits here. Memory that is registered with NCCL is carried by the copy
//! engines where all GPUs reach each other and `NCCL_CTA_POLICY` is 2, which `launch` sets: a
//! multiprocessor that carries data is missing in products whose grids fill the device, and each of
//! those then takes up to twice its time.

use std::{
    cell::Cell,
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    io, ptr,
};

use libloading::os::unix::Library;
use tch::{Device, Kind, TchError, Tensor};

use super::{Group, Pending, Ring};
use crate::fused::driver::{self, failure, symbol};

/// PyTorch's current stream, on which everything is computed.
const COMPUTATION: Handle = ptr::null_mut();
/// Not ordered after the legacy default stream by itself.
const NON_BLOCKING: c_uint = 1;
/// The driver takes the nearest priority it has. Collectives are short of time, not of
/// multiprocessors.
const HIGHEST_PRIORITY: c_int = -100;
const DISABLE_TIMING: c_uint = 2;
/// More than are ever on their way at one time. One that is used again too early would only be
/// waited for longer.
const EVENTS: usize = 64;

const FLOAT32: c_int = 7;
const BFLOAT16: c_int = 9;
const SUM: c_int = 0;
/// Every rank uses the same offsets in its registered memory.
const SYMMETRIC: c_int = 1;
/// NCCL_WIN_REQUIRED_ALIGNMENT.
const WINDOW_ALIGNMENT: usize = 4096;
/// What NCCL says when another process has gone.
const SYSTEM_ERROR: c_int = 2;
const REMOTE_ERROR: c_int = 6;

type Handle = *mut c_void;
type GetUniqueId = unsafe extern "C" fn(*mut UniqueId) -> c_int;
type InitRank = unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int) -> c_int;
type AllGather = unsafe extern "C" fn(*const c_void, Handle, usize, c_int, Handle, Handle) -> c_int;
type AllToAll = unsafe extern "C" fn(*const c_void, Handle, usize, c_int, Handle, Handle) -> c_int;
type Allocate = unsafe extern "C" fn(*mut Handle, usize) -> c_int;
type Register = unsafe extern "C" fn(Handle, Handle, usize, *mut Handle, c_int) -> c_int;
type Reduce =
    unsafe extern "C" fn(*const c_void, Handle, usize, c_int, c_int, Handle, Handle) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;
type LastError = unsafe extern "C" fn(Handle) -> *const c_char;
type StreamCreate = unsafe extern "C" fn(*mut Handle, c_uint, c_int) -> c_int;
type EventCreate = unsafe extern "C" fn(*mut Handle, c_uint) -> c_int;
type EventRecord = unsafe extern "C" fn(Handle, Handle) -> c_int;
type StreamWait = unsafe extern "C" fn(Handle, Handle, c_uint) -> c_int;

/// ncclUniqueId.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; 128]);

pub struct Nccl {
    rank: usize,
    size: usize,
    communicator: Handle,
    /// Where collectives run.
    stream: Handle,
    events: [Handle; EVENTS],
    used: Cell<usize>,
    all_gather: AllGather,
    all_to_all: AllToAll,
    all_reduce: Reduce,
    allocate: Allocate,
    register: Register,
    allocated: Cell<u64>,
    messages: Messages,
    event_record: EventRecord,
    stream_wait: StreamWait,
}

#[derive(Clone, Copy)]
struct Messages {
    error: ErrorString,
    last: LastError,
}

impl Nccl {
    /// Connects the current device with those of the other ranks; returns when all of them have
    /// come.
    pub fn open(ring: &Ring) -> Result<Self, TchError> {
        // SAFETY: it is loaded, and names its own dependencies; nothing is initialised a second
        // time.
        let torch =
            unsafe { Library::new("libtorch_cuda.so") }.map_err(|e| failure(e.to_string()))?;
        let messages = Messages {
            error: symbol(&torch, "ncclGetErrorString")?,
            last: symbol(&torch, "ncclGetLastError")?,
        };
        let mut id = UniqueId([0; 128]);
        if ring.rank() == 0 {
            let unique_id: GetUniqueId = symbol(&torch, "ncclGetUniqueId")?;
            // SAFETY: `id` is valid for the write.
            messages.check("ncclGetUniqueId", unsafe { unique_id(&raw mut id) })?;
        }
        ring.broadcast(&mut id.0)?;
        let init_rank: InitRank = symbol(&torch, "ncclCommInitRank")?;
        let (size, rank) = (ring.size(), ring.rank());
        let mut communicator = ptr::null_mut();
        // SAFETY: `communicator` is valid for the write, and the identifier is rank 0's.
        let code = unsafe { init_rank(&raw mut communicator, size as c_int, id, rank as c_int) };
        messages.check("ncclCommInitRank", code)?;

        let library = driver::load("libcaffe2_nvrtc.so")?;
        let stream_create: StreamCreate = symbol(&library, "cuStreamCreateWithPriority")?;
        let event_create: EventCreate = symbol(&library, "cuEventCreate")?;
        let mut stream = ptr::null_mut();
        let mut events = [ptr::null_mut(); EVENTS];
        // SAFETY: all pointers are valid for the writes; NCCL has made the device's context
        // current.
        unsafe {
            cuda(
                "cuStreamCreateWithPriority",
                stream_create(&raw mut stream, NON_BLOCKING, HIGHEST_PRIORITY),
            )?;
            for event in &mut events {
                cuda("cuEventCreate", event_create(event, DISABLE_TIMING))?;
            }
        }
        Ok(Self {
            rank,
            size,
            communicator,
            stream,
            events,
            used: Cell::new(0),
            all_gather: symbol(&torch, "ncclAllGather")?,
            all_to_all: symbol(&torch, "ncclAlltoAll")?,
            all_reduce: symbol(&torch, "ncclAllReduce")?,
            allocate: symbol(&torch, "ncclMemAlloc")?,
            register: symbol(&torch, "ncclCommWindowRegister")?,
            allocated: Cell::new(0),
            messages,
            event_record: symbol(&library, "cuEventRecord")?,
            stream_wait: symbol(&library, "cuStreamWaitEvent")?,
        })
    }

    /// Puts the end of all that is queued on `before` ahead of what comes on `after`; the event's
    /// number.
    fn order(&self, before: Handle, after: Option<Handle>) -> Result<usize, TchError> {
        let number = (self.used.get() + 1) % EVENTS;
        self.used.set(number);
        // SAFETY: streams and events live as long as the process.
        unsafe {
            cuda(
                "cuEventRecord",
                (self.event_record)(self.events[number], before),
            )?;
            if let Some(after) = after {
                cuda(
                    "cuStreamWaitEvent",
                    (self.stream_wait)(after, self.events[number], 0),
                )?;
            }
        }
        Ok(number)
    }

    /// Queues a collective, after what is queued for computation by now.
    fn queue(
        &self,
        what: &str,
        call: impl FnOnce(Handle, Handle) -> c_int,
    ) -> Result<Pending, TchError> {
        self.order(COMPUTATION, Some(self.stream))?;
        self.messages
            .check(what, call(self.communicator, self.stream))?;
        Ok(Pending(self.order(self.stream, None)?))
    }

    /// `whole` has one part for each rank, on a GPU; NCCL's name of their kind.
    fn kind(&self, part: &Tensor, whole: &Tensor) -> Result<c_int, TchError> {
        let fits = whole.numel() == part.numel() * self.size
            && self.is_contiguous(part)
            && self.is_contiguous(whole);
        match part.kind() {
            Kind::Float if fits && whole.kind() == Kind::Float => Ok(FLOAT32),
            Kind::BFloat16 if fits && whole.kind() == Kind::BFloat16 => Ok(BFLOAT16),
            kind => {
                let sizes = (whole.size(), whole.kind(), part.size(), kind);
                Err(failure(format!(
                    "{} ranks cannot share {sizes:?}",
                    self.size
                )))
            }
        }
    }

    fn is_contiguous(&self, tensor: &Tensor) -> bool {
        tensor.is_contiguous() && tensor.device().is_cuda()
    }
}

impl Group for Nccl {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn allocate(&self, length: i64, kind: Kind, device: Device) -> Result<Tensor, TchError> {
        let bytes =
            (length.max(1) as usize * kind.elt_size_in_bytes()).next_multiple_of(WINDOW_ALIGNMENT);
        let (mut memory, mut window) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: both pointers are valid for the writes; the memory is never given back, so the
        // tensor may always read it.
        let tensor = unsafe {
            self.messages
                .check("ncclMemAlloc", (self.allocate)(&raw mut memory, bytes))?;
            let code =
                (self.register)(self.communicator, memory, bytes, &raw mut window, SYMMETRIC);
            self.messages.check("ncclCommWindowRegister", code)?;
            Tensor::f_from_blob(
                memory.cast::<u8>().cast_const(),
                &[length],
                &[1],
                kind,
                device,
            )?
        };
        self.allocated.set(self.allocated.get() + bytes as u64);
        tensor.shallow_clone().f_zero_()
    }

    fn allocated_bytes(&self) -> u64 {
        self.allocated.get()
    }

    fn all_gather(&self, part: &Tensor, whole: &Tensor) -> Result<Pending, TchError> {
        let kind = self.kind(part, whole)?;
        // SAFETY: sizes and kinds were checked, and callers keep both tensors until they have
        // waited.
        self.queue("ncclAllGather", |communicator, stream| unsafe {
            (self.all_gather)(
                part.data_ptr(),
                whole.data_ptr(),
                part.numel(),
                kind,
                communicator,
                stream,
            )
        })
    }

    fn all_to_all(&self, sent: &Tensor, received: &Tensor) -> Result<Pending, TchError> {
        let part = sent.f_narrow(0, 0, (sent.numel() / self.size) as i64)?;
        let kind = self.kind(&part, received)?;
        self.kind(&part, sent)?;
        // SAFETY: as above.
        self.queue("ncclAlltoAll", |communicator, stream| unsafe {
            (self.all_to_all)(
                sent.data_ptr(),
                received.data_ptr(),
                part.numel(),
                kind,
                communicator,
                stream,
            )
        })
    }

    fn all_reduce(&self, tensor: &Tensor) -> Result<Pending, TchError> {
        let kind = match tensor.kind() {
            Kind::Float if self.is_contiguous(tensor) => FLOAT32,
            Kind::BFloat16 if self.is_contiguous(tensor) => BFLOAT16,
            kind => {
                return Err(failure(format!(
                    "cannot add up {:?} of {kind:?} over ranks",
                    tensor.size()
                )));
            }
        };
        let at = tensor.data_ptr();
        // SAFETY: as above; NCCL takes one buffer for both directions.
        self.queue("ncclAllReduce", |communicator, stream| unsafe {
            (self.all_reduce)(at, at, tensor.numel(), kind, SUM, communicator, stream)
        })
    }

    fn wait(&self, pending: Pending) -> Result<(), TchError> {
        // SAFETY: the event was recorded by the collective.
        cuda("cuStreamWaitEvent", unsafe {
            (self.stream_wait)(COMPUTATION, self.events[pending.0], 0)
        })
    }
}

impl Messages {
    /// An error of a rank that has gone is one of input and output, as it is with sockets.
    fn check(&self, what: &str, code: c_int) -> Result<(), TchError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: both return strings that NCCL keeps, or nothing.
        let text = |text: *const c_char| match text.is_null() {
            true => String::new(),
            false => unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned(),
        };
        // SAFETY: NCCL takes no communicator here as "the last error of this thread".
        let (name, detail) =
            unsafe { (text((self.error)(code)), text((self.last)(ptr::null_mut()))) };
        let message = format!("{what} failed: {name} {detail}")
            .trim_end()
            .to_owned();
        match code {
            SYSTEM_ERROR | REMOTE_ERROR => {
                Err(io::Error::new(io::ErrorKind::ConnectionReset, message).into())
            }
            _ => Err(failure(message)),
        }
    }
}

fn cuda(what: &str, code: c_int) -> Result<(), TchError> {
    match code {
        0 => Ok(()),
        _ => Err(failure(format!("{what} failed with status {code}"))),
    }
}
