//! Matrix products through cuBLASLt, which adds to its output and converts on the way out.
//!
//! The library is the one that libtorch_cuda has loaded. Its heuristic offers several algorithms
//! for a product; before the first step, each product of the job is timed with all of them on
//! scratch matrices, and the fastest is kept, also for later runs (`choices`). A job that wants the
//! same bits from every run takes the first one instead.

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, hash_map::Entry},
    ffi::{c_int, c_void},
    ptr,
};

use libloading::os::unix::Library;
use tch::{Device, Kind, TchError, Tensor};

use super::{
    backend::{Layout, Product},
    driver::{Driver, failure, symbol},
};

const COMPUTE_FP32: c_int = 68;
const TYPE_FP32: c_int = 0;
const TYPE_BF16: c_int = 14;
const TYPE_E4M3: c_int = 28;
const TYPE_E5M2: c_int = 29;
const TRANSPOSE_A: c_int = 3;
const TRANSPOSE_B: c_int = 4;
const EPILOGUE: c_int = 7;
const BIAS_POINTER: c_int = 8;
const EPILOGUE_BIAS: c_int = 4;
const SCALE_POINTER_A: c_int = 17;
const SCALE_POINTER_B: c_int = 18;
const FAST_ACCUMULATION: c_int = 25;
const MAX_WORKSPACE_BYTES: c_int = 1;
/// How many algorithms are tried.
const CANDIDATES: usize = 8;
/// Another algorithm than the first one offered must be faster by this factor: less is within the
/// noise of the timing.
const GAIN: f64 = 0.99;
/// What PyTorch gives cuBLASLt on Hopper.
const WORKSPACE: i64 = 32 << 20;

type Handle = *mut c_void;
type Create = unsafe extern "C" fn(*mut Handle) -> c_int;
type Version = unsafe extern "C" fn() -> usize;
type DescriptorCreate = unsafe extern "C" fn(*mut Handle, c_int, c_int) -> c_int;
type LayoutCreate = unsafe extern "C" fn(*mut Handle, c_int, u64, u64, i64) -> c_int;
type SetAttribute = unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> c_int;
type Heuristic = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    c_int,
    *mut Candidate,
    *mut c_int,
) -> c_int;
type Multiply = unsafe extern "C" fn(
    Handle,
    Handle,
    *const f32,
    *const c_void,
    Handle,
    *const c_void,
    Handle,
    *const f32,
    *const c_void,
    Handle,
    *mut c_void,
    Handle,
    *const Algorithm,
    *mut c_void,
    usize,
    *mut c_void,
) -> c_int;

/// cublasLtMatmulAlgo_t: opaque, and may be copied.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Algorithm([u64; 8]);

impl Algorithm {
    fn text(&self) -> String {
        self.0.iter().map(|word| format!("{word:016x}")).collect()
    }
}

/// cublasLtMatmulHeuristicResult_t.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Candidate {
    algorithm: Algorithm,
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

/// All that cuBLASLt must know of one kind of product; made once for each.
struct Prepared {
    operation: Handle,
    left: Handle,
    right: Handle,
    out: Handle,
    algorithms: Vec<Algorithm>,
    chosen: Cell<usize>,
}

/// What decides which algorithms there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    layout: Layout,
    sizes: [i64; 3],
    left: c_int,
    right: c_int,
    out: c_int,
    has_bias: bool,
}

/// Outcome of the timing of one product.
pub struct Tuned {
    pub chosen: usize,
    /// Seconds with the first algorithm offered and with the chosen one.
    pub first: f64,
    pub best: f64,
}

pub struct Products {
    library: Handle,
    /// As cublasLtGetVersion has it.
    pub version: usize,
    descriptor_create: DescriptorCreate,
    layout_create: LayoutCreate,
    set_operation: SetAttribute,
    heuristic: Heuristic,
    multiply: Multiply,
    preference: Handle,
    workspace: Tensor,
    /// Products of fp8 add up with fewer bits, and faster.
    pub fast_accumulation: Cell<bool>,
    prepared: RefCell<HashMap<Key, Prepared>>,
}

impl Products {
    /// `library` is libtorch_cuda, which links cuBLASLt.
    pub fn open(library: &Library, device: Device) -> Result<Self, TchError> {
        let create: Create = symbol(library, "cublasLtCreate")?;
        let preference_create: Create = symbol(library, "cublasLtMatmulPreferenceCreate")?;
        let set_preference: SetAttribute = symbol(library, "cublasLtMatmulPreferenceSetAttribute")?;
        let (mut handle, mut preference) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: both pointers are valid for the writes, and the attribute is a u64.
        unsafe {
            check("cublasLtCreate", create(&raw mut handle))?;
            check(
                "cublasLtMatmulPreferenceCreate",
                preference_create(&raw mut preference),
            )?;
            let bytes = WORKSPACE as u64;
            let code = set_preference(
                preference,
                MAX_WORKSPACE_BYTES,
                (&raw const bytes).cast(),
                size_of::<u64>(),
            );
            check("cublasLtMatmulPreferenceSetAttribute", code)?;
        }
        Ok(Self {
            library: handle,
            // SAFETY: it takes nothing and returns a number.
            version: unsafe { symbol::<Version>(library, "cublasLtGetVersion")?() },
            descriptor_create: symbol(library, "cublasLtMatmulDescCreate")?,
            layout_create: symbol(library, "cublasLtMatrixLayoutCreate")?,
            set_operation: symbol(library, "cublasLtMatmulDescSetAttribute")?,
            heuristic: symbol(library, "cublasLtMatmulAlgoGetHeuristic")?,
            multiply: symbol(library, "cublasLtMatmul")?,
            preference,
            workspace: Tensor::f_empty([WORKSPACE], (Kind::Uint8, device))?,
            fast_accumulation: Cell::new(false),
            prepared: RefCell::default(),
        })
    }

    /// Queues the product; `product` was checked.
    pub fn run(&self, product: &Product) -> Result<(), TchError> {
        let key = key(product)?;
        let mut all = self.prepared.borrow_mut();
        let prepared = self.entry(&mut all, key)?;
        if let Some(bias) = product.bias {
            self.set(prepared.operation, BIAS_POINTER, &bias.data_ptr())?;
        }
        if let Some([left, right]) = product.scales {
            self.set(prepared.operation, SCALE_POINTER_A, &right.data_ptr())?;
            self.set(prepared.operation, SCALE_POINTER_B, &left.data_ptr())?;
        }
        let (alpha, beta) = (1.0_f32, if product.add.is_some() { 1.0_f32 } else { 0.0 });
        let add = product.add.unwrap_or(product.out);
        // Row-major matrices are column-major ones transposed, so the factors change places.
        // SAFETY: the sizes were checked against the tensors, and all of them live on the device
        // until the stream is through, because PyTorch's allocator gives memory back in the
        // stream's order.
        let code = unsafe {
            (self.multiply)(
                self.library,
                prepared.operation,
                &raw const alpha,
                product.right.data_ptr(),
                prepared.left,
                product.left.data_ptr(),
                prepared.right,
                &raw const beta,
                add.data_ptr(),
                prepared.out,
                product.out.data_ptr(),
                prepared.out,
                &raw const prepared.algorithms[prepared.chosen.get()],
                self.workspace.data_ptr(),
                WORKSPACE as usize,
                ptr::null_mut(),
            )
        };
        check("cublasLtMatmul", code)
    }

    /// Takes the algorithm that an earlier run chose for `product`, if it is offered: its place
    /// among those that are.
    pub fn take(&self, product: &Product, algorithm: &str) -> Result<Option<usize>, TchError> {
        let mut all = self.prepared.borrow_mut();
        let prepared = self.entry(&mut all, key(product)?)?;
        let found = prepared
            .algorithms
            .iter()
            .position(|offered| offered.text() == algorithm);
        if let Some(choice) = found {
            prepared.chosen.set(choice);
        }
        Ok(found)
    }

    /// What decides which algorithms `product` has, and the chosen one, as texts for
    /// [`Self::take`].
    pub fn chosen(&self, product: &Product) -> Result<Option<String>, TchError> {
        let all = self.prepared.borrow();
        Ok(all
            .get(&key(product)?)
            .map(|prepared| prepared.algorithms[prepared.chosen.get()].text()))
    }

    pub fn name(&self, product: &Product) -> Result<String, TchError> {
        Ok(format!(
            "{:?}, fast accumulation {}",
            key(product)?,
            self.fast_accumulation.get()
        ))
    }

    /// Times `product` with every algorithm offered and keeps the fastest; overwrites its output.
    pub fn tune(&self, driver: &Driver, product: &Product) -> Result<Tuned, TchError> {
        const CALLS: u32 = 3;
        self.run(product)?;
        let key = key(product)?;
        let choose = |choice| {
            let all = self.prepared.borrow();
            all.get(&key).map_or(0, |prepared| {
                prepared.chosen.set(choice);
                prepared.algorithms.len()
            })
        };
        let mut seconds = vec![f64::INFINITY; choose(0)];
        // Two rounds, so that a card that slows down as it warms up does not decide.
        for _ in 0..2 {
            for (choice, best) in seconds.iter_mut().enumerate() {
                choose(choice);
                self.run(product)?;
                let all = driver.time(|| (0..CALLS).try_for_each(|_| self.run(product)))?;
                *best = best.min(all / f64::from(CALLS));
            }
        }
        let mut chosen = 0;
        for (choice, time) in seconds.iter().enumerate() {
            if *time < seconds[chosen] && *time < seconds[0] * GAIN {
                chosen = choice;
            }
        }
        choose(chosen);
        Ok(Tuned {
            chosen,
            first: seconds[0],
            best: seconds[chosen],
        })
    }

    fn entry<'a>(
        &self,
        all: &'a mut HashMap<Key, Prepared>,
        key: Key,
    ) -> Result<&'a mut Prepared, TchError> {
        Ok(match all.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.prepare(key)?),
        })
    }

    fn prepare(&self, key: Key) -> Result<Prepared, TchError> {
        let Key {
            layout,
            sizes: [rows, inner, cols],
            ..
        } = key;
        let mut operation = ptr::null_mut();
        // SAFETY: the pointer is valid for the write.
        check("cublasLtMatmulDescCreate", unsafe {
            (self.descriptor_create)(&raw mut operation, COMPUTE_FP32, TYPE_FP32)
        })?;
        let (transpose_a, transpose_b): (c_int, c_int) = match layout {
            Layout::Forward => (1, 0),
            Layout::Input => (0, 0),
            Layout::Weight => (0, 1),
        };
        self.set(operation, TRANSPOSE_A, &transpose_a)?;
        self.set(operation, TRANSPOSE_B, &transpose_b)?;
        if key.has_bias {
            self.set(operation, EPILOGUE, &EPILOGUE_BIAS)?;
        }
        if key.left != TYPE_BF16 {
            self.set(
                operation,
                FAST_ACCUMULATION,
                &i8::from(self.fast_accumulation.get()),
            )?;
        }
        // Column-major: the stored rows of a matrix are the row-major one's columns.
        let matrix = |kind, rows: i64, cols: i64| {
            let mut matrix = ptr::null_mut();
            // SAFETY: the pointer is valid for the write.
            let code = unsafe {
                (self.layout_create)(&raw mut matrix, kind, cols as u64, rows as u64, cols)
            };
            check("cublasLtMatrixLayoutCreate", code)?;
            Ok::<_, TchError>(matrix)
        };
        let (left, right) = match layout {
            Layout::Forward => (
                matrix(key.right, cols, inner)?,
                matrix(key.left, rows, inner)?,
            ),
            Layout::Input => (
                matrix(key.right, inner, cols)?,
                matrix(key.left, rows, inner)?,
            ),
            Layout::Weight => (
                matrix(key.right, inner, cols)?,
                matrix(key.left, inner, rows)?,
            ),
        };
        let out = matrix(key.out, rows, cols)?;
        let mut candidates = [Candidate::default(); CANDIDATES];
        let mut found = 0;
        // SAFETY: at most as many candidates are written as there is room for.
        check("cublasLtMatmulAlgoGetHeuristic", unsafe {
            (self.heuristic)(
                self.library,
                operation,
                left,
                right,
                out,
                out,
                self.preference,
                candidates.len() as c_int,
                candidates.as_mut_ptr(),
                &raw mut found,
            )
        })?;
        let usable = candidates
            .iter()
            .take(found as usize)
            .filter(|c| c.state == 0);
        let algorithms: Vec<Algorithm> = usable.map(|c| c.algorithm).collect();
        if algorithms.is_empty() {
            return Err(failure(format!(
                "cuBLASLt has no algorithm for {layout:?} {rows} x {inner} x {cols}"
            )));
        }
        Ok(Prepared {
            operation,
            left,
            right,
            out,
            algorithms,
            chosen: Cell::new(0),
        })
    }

    fn set<T>(&self, operation: Handle, which: c_int, value: &T) -> Result<(), TchError> {
        // SAFETY: the attribute is of the size of `T`, which each caller took from cublasLt.h.
        let code = unsafe {
            (self.set_operation)(
                operation,
                which,
                ptr::from_ref(value).cast(),
                size_of::<T>(),
            )
        };
        check("cublasLtMatmulDescSetAttribute", code)
    }
}

fn key(product: &Product) -> Result<Key, TchError> {
    Ok(Key {
        layout: product.layout,
        sizes: product.sizes(),
        left: cuda_type(product.left.kind())?,
        right: cuda_type(product.right.kind())?,
        out: cuda_type(product.out.kind())?,
        has_bias: product.bias.is_some(),
    })
}

/// cudaDataType of a tensor's values.
fn cuda_type(kind: Kind) -> Result<c_int, TchError> {
    match kind {
        Kind::Float => Ok(TYPE_FP32),
        Kind::BFloat16 => Ok(TYPE_BF16),
        Kind::Float8e4m3fn => Ok(TYPE_E4M3),
        Kind::Float8e5m2 => Ok(TYPE_E5M2),
        other => Err(failure(format!("a product of {other:?}"))),
    }
}

fn check(what: &str, code: c_int) -> Result<(), TchError> {
    match code {
        0 => Ok(()),
        _ => Err(failure(format!("{what} failed with status {code}"))),
    }
}
