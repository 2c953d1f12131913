//! Matrix products through cuBLASLt, which adds to its output and converts on the way out.
//!
//! The library is the one that libtorch_cuda has loaded. Its heuristic offers several algorithms for a product; before
//! the first step, each product of the job is timed with all of them on scratch matrices, and the fastest is kept.

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
    layer::Weight,
};

const COMPUTE_FP32: c_int = 68;
const TYPE_FP32: c_int = 0;
const TYPE_BF16: c_int = 14;
const TRANSPOSE_A: c_int = 3;
const TRANSPOSE_B: c_int = 4;
const EPILOGUE: c_int = 7;
const BIAS_POINTER: c_int = 8;
const EPILOGUE_BIAS: c_int = 4;
const MAX_WORKSPACE_BYTES: c_int = 1;
/// How many algorithms are tried.
const CANDIDATES: usize = 8;
/// Another algorithm than the first one offered must be faster by this factor: less is within the noise of the timing.
const GAIN: f64 = 0.99;
/// What PyTorch gives cuBLASLt on Hopper.
const WORKSPACE: i64 = 32 << 20;

type Handle = *mut c_void;
type Create = unsafe extern "C" fn(*mut Handle) -> c_int;
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
#[derive(Clone, Copy, Default)]
struct Algorithm([u64; 8]);

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

/// Layout, sizes, kind of the output, whether there is a bias.
type Key = (Layout, [i64; 3], c_int, bool);

/// Outcome of the timing of one product.
pub struct Tuned {
    pub chosen: usize,
    /// Seconds with the first algorithm offered and with the chosen one.
    pub first: f64,
    pub best: f64,
}

/// Activations of one linear layer, for timing its products with its weight.
pub struct Scratch<'a> {
    x: Tensor,
    dx: Tensor,
    dy: Tensor,
    weight: &'a Weight,
}

impl<'a> Scratch<'a> {
    pub fn new(rows: i64, weight: &'a Weight) -> Result<Self, TchError> {
        let (outputs, inner) = weight.value.size2()?;
        let random = |cols| Tensor::f_randn([rows, cols], (Kind::BFloat16, weight.value.device()));
        Ok(Self { x: random(inner)?, dx: random(inner)?, dy: random(outputs)?, weight })
    }

    /// The product for a weight's gradient writes over what is there: before the first step there is none.
    pub fn product(&self, layout: Layout) -> Product<'_> {
        let Self { x, dx, dy, weight: Weight { value, gradient } } = self;
        match layout {
            Layout::Forward => Product { layout, left: x, right: value, out: dy, add: None, bias: None },
            Layout::Input => Product { layout, left: dy, right: value, out: dx, add: None, bias: None },
            Layout::Weight => Product { layout, left: dy, right: x, out: gradient, add: Some(gradient), bias: None },
        }
    }
}

pub struct Products {
    library: Handle,
    descriptor_create: DescriptorCreate,
    layout_create: LayoutCreate,
    set_operation: SetAttribute,
    heuristic: Heuristic,
    multiply: Multiply,
    preference: Handle,
    workspace: Tensor,
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
            check("cublasLtMatmulPreferenceCreate", preference_create(&raw mut preference))?;
            let bytes = WORKSPACE as u64;
            let code = set_preference(preference, MAX_WORKSPACE_BYTES, (&raw const bytes).cast(), size_of::<u64>());
            check("cublasLtMatmulPreferenceSetAttribute", code)?;
        }
        Ok(Self {
            library: handle,
            descriptor_create: symbol(library, "cublasLtMatmulDescCreate")?,
            layout_create: symbol(library, "cublasLtMatrixLayoutCreate")?,
            set_operation: symbol(library, "cublasLtMatmulDescSetAttribute")?,
            heuristic: symbol(library, "cublasLtMatmulAlgoGetHeuristic")?,
            multiply: symbol(library, "cublasLtMatmul")?,
            preference,
            workspace: Tensor::f_empty([WORKSPACE], (Kind::Uint8, device))?,
            prepared: RefCell::default(),
        })
    }

    /// Queues the product; `product` was checked.
    pub fn run(&self, product: &Product) -> Result<(), TchError> {
        let key = key(product);
        let mut all = self.prepared.borrow_mut();
        let prepared = match all.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.prepare(key)?),
        };
        if let Some(bias) = product.bias {
            self.set(prepared.operation, BIAS_POINTER, &bias.data_ptr())?;
        }
        let (alpha, beta) = (1.0_f32, if product.add.is_some() { 1.0_f32 } else { 0.0 });
        let add = product.add.unwrap_or(product.out);
        // Row-major matrices are column-major ones transposed, so the factors change places.
        // SAFETY: the sizes were checked against the tensors, and all of them live on the device until the stream is
        // through, because PyTorch's allocator gives memory back in the stream's order.
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

    /// Times `product` with every algorithm offered and keeps the fastest; overwrites its output.
    pub fn tune(&self, driver: &Driver, product: &Product) -> Result<Tuned, TchError> {
        const CALLS: u32 = 3;
        self.run(product)?;
        let choose = |choice| {
            let all = self.prepared.borrow();
            all.get(&key(product)).map_or(0, |prepared| {
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
        Ok(Tuned { chosen, first: seconds[0], best: seconds[chosen] })
    }

    fn prepare(&self, key: Key) -> Result<Prepared, TchError> {
        let (layout, [rows, inner, cols], kind, has_bias) = key;
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
        if has_bias {
            self.set(operation, EPILOGUE, &EPILOGUE_BIAS)?;
        }
        // Column-major: the stored rows of a matrix are the row-major one's columns.
        let matrix = |kind, rows: i64, cols: i64| {
            let mut matrix = ptr::null_mut();
            // SAFETY: the pointer is valid for the write.
            let code = unsafe { (self.layout_create)(&raw mut matrix, kind, cols as u64, rows as u64, cols) };
            check("cublasLtMatrixLayoutCreate", code)?;
            Ok::<_, TchError>(matrix)
        };
        let (left, right) = match layout {
            Layout::Forward => (matrix(TYPE_BF16, cols, inner)?, matrix(TYPE_BF16, rows, inner)?),
            Layout::Input => (matrix(TYPE_BF16, inner, cols)?, matrix(TYPE_BF16, rows, inner)?),
            Layout::Weight => (matrix(TYPE_BF16, inner, cols)?, matrix(TYPE_BF16, inner, rows)?),
        };
        let out = matrix(kind, rows, cols)?;
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
        let usable = candidates.iter().take(found as usize).filter(|c| c.state == 0);
        let algorithms: Vec<Algorithm> = usable.map(|c| c.algorithm).collect();
        if algorithms.is_empty() {
            return Err(failure(format!("cuBLASLt has no algorithm for {layout:?} {rows} x {inner} x {cols}")));
        }
        Ok(Prepared { operation, left, right, out, algorithms, chosen: Cell::new(0) })
    }

    fn set<T>(&self, operation: Handle, which: c_int, value: &T) -> Result<(), TchError> {
        // SAFETY: the attribute is of the size of `T`, which each caller took from cublasLt.h.
        let code = unsafe { (self.set_operation)(operation, which, ptr::from_ref(value).cast(), size_of::<T>()) };
        check("cublasLtMatmulDescSetAttribute", code)
    }
}

fn key(product: &Product) -> Key {
    let kind = if product.out.kind() == Kind::Float { TYPE_FP32 } else { TYPE_BF16 };
    (product.layout, product.sizes(), kind, product.bias.is_some())
}

fn check(what: &str, code: c_int) -> Result<(), TchError> {
    match code {
        0 => Ok(()),
        _ => Err(failure(format!("{what} failed with status {code}"))),
    }
}
