//! Compiles the kernels for the device that is there, loads and launches them, and times work on
//! the device.
//!
//! NVRTC and the driver's functions are taken from PyTorch's own libcaffe2_nvrtc, which links both,
//! so that neither a compiler nor CUDA's headers are needed to build this program or to run it.

use std::{
    cell::RefCell,
    collections::HashMap,
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    path::Path,
    ptr,
    time::Instant,
};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use tch::TchError;

/// The source of all kernels.
pub const KERNELS: &str = concat!(
    include_str!("kernels/words.cu"),
    include_str!("kernels/fp8.cu"),
    include_str!("kernels/layer.cu"),
    include_str!("kernels/ends.cu"),
    include_str!("kernels/update.cu"),
);

/// PyTorch's current stream. Nothing in this program ever makes another one current.
const DEFAULT_STREAM: *mut c_void = ptr::null_mut();
const MAX_DYNAMIC_SHARED_BYTES: c_int = 8;
const MAX_SHARED_PER_BLOCK_OPTIN: c_int = 97;
const MULTIPROCESSORS: c_int = 16;
const MAJOR: c_int = 75;
const MINOR: c_int = 76;

type Compile = unsafe extern "C" fn(*mut c_void, c_int, *const *const c_char) -> c_int;
type Create = unsafe extern "C" fn(
    *mut *mut c_void,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Size = unsafe extern "C" fn(*mut c_void, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(*mut c_void, *mut c_char) -> c_int;
type Attribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
type ModuleLoad = unsafe extern "C" fn(*mut *mut c_void, *const c_void) -> c_int;
type GetFunction = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const c_char) -> c_int;
type SetAttribute = unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int;
type ErrorName = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
type EventCreate = unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int;
type EventRecord = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type EventWait = unsafe extern "C" fn(*mut c_void) -> c_int;
type EventElapsed = unsafe extern "C" fn(*mut f32, *mut c_void, *mut c_void) -> c_int;
type LaunchKernel = unsafe extern "C" fn(
    *mut c_void,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;

pub fn failure(text: String) -> TchError {
    TchError::Torch(text)
}

/// A function of a library that stays loaded until the process ends.
pub fn symbol<T: Copy>(library: &Library, name: &str) -> Result<T, TchError> {
    // SAFETY: callers name the type that the library's header declares.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found
        .map(|s| *s)
        .map_err(|e| failure(format!("PyTorch's libraries lack {name}: {e}")))
}

/// The kernels of one source, loaded on the current device.
pub struct Driver {
    launch: LaunchKernel,
    error_name: ErrorName,
    events: Events,
    get_function: GetFunction,
    set_attribute: SetAttribute,
    module: *mut c_void,
    functions: RefCell<HashMap<&'static str, (*mut c_void, u32)>>,
    pub multiprocessors: u32,
    /// Shared memory that one block may ask for, in bytes.
    pub shared_memory: u32,
    /// Compute capability, times ten.
    pub capability: u32,
    pub architecture: String,
    pub compile_seconds: f64,
}

struct Events {
    create: EventCreate,
    record: EventRecord,
    wait: EventWait,
    elapsed: EventElapsed,
}

impl Driver {
    /// For the device with this number. Needs a current context: something must have been allocated
    /// on it before.
    pub fn open(device: usize) -> Result<Self, TchError> {
        let library = load("libcaffe2_nvrtc.so")?;
        let error_name: ErrorName = symbol(&library, "cuGetErrorName")?;
        let attribute: Attribute = symbol(&library, "cuDeviceGetAttribute")?;
        let read = |which| {
            let mut value = 0;
            // SAFETY: `value` is valid for the write; the device is the one that `device::open`
            // found.
            check(error_name, "cuDeviceGetAttribute", unsafe {
                attribute(&raw mut value, which, device as c_int)
            })?;
            Ok::<_, TchError>(value as u32)
        };
        let capability = 10 * read(MAJOR)? + read(MINOR)?;
        let architecture = format!("sm_{capability}");
        let start = Instant::now();
        let binary = compile(&library, &architecture)?;
        let compile_seconds = start.elapsed().as_secs_f64();
        let module_load: ModuleLoad = symbol(&library, "cuModuleLoadData")?;
        let mut module = ptr::null_mut();
        // SAFETY: `binary` is a whole cubin, and the driver copies it.
        check(error_name, "cuModuleLoadData", unsafe {
            module_load(&raw mut module, binary.as_ptr().cast())
        })?;
        Ok(Self {
            launch: symbol(&library, "cuLaunchKernel")?,
            error_name,
            events: Events {
                create: symbol(&library, "cuEventCreate")?,
                record: symbol(&library, "cuEventRecord")?,
                wait: symbol(&library, "cuEventSynchronize")?,
                elapsed: symbol(&library, "cuEventElapsedTime")?,
            },
            get_function: symbol(&library, "cuModuleGetFunction")?,
            set_attribute: symbol(&library, "cuFuncSetAttribute")?,
            module,
            functions: RefCell::default(),
            multiprocessors: read(MULTIPROCESSORS)?,
            shared_memory: read(MAX_SHARED_PER_BLOCK_OPTIN)?,
            capability,
            architecture,
            compile_seconds,
        })
    }

    /// Queues a kernel on PyTorch's stream.
    ///
    /// # Safety
    /// `arguments` point to values of the types that the kernel declares, in its order, and device
    /// pointers among them are valid for what the kernel reads and writes.
    pub unsafe fn launch(
        &self,
        name: &'static str,
        grid: [u32; 2],
        threads: u32,
        shared: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), TchError> {
        let function = self.function(name, shared)?;
        // SAFETY: the caller vouches for the arguments.
        let code = unsafe {
            (self.launch)(
                function,
                grid[0],
                grid[1],
                1,
                threads,
                1,
                1,
                shared,
                DEFAULT_STREAM,
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check(self.error_name, name, code)
    }

    fn function(&self, name: &'static str, shared: u32) -> Result<*mut c_void, TchError> {
        let mut functions = self.functions.borrow_mut();
        if let Some((function, most)) = functions.get(name)
            && shared <= *most
        {
            return Ok(*function);
        }
        let mut function = ptr::null_mut();
        let c_name = CString::new(name).unwrap_or_default();
        // SAFETY: the module is loaded and never unloaded.
        check(self.error_name, name, unsafe {
            (self.get_function)(&raw mut function, self.module, c_name.as_ptr())
        })?;
        if shared > 0 {
            // SAFETY: `function` was found just now.
            let code = unsafe {
                (self.set_attribute)(function, MAX_DYNAMIC_SHARED_BYTES, shared as c_int)
            };
            check(self.error_name, name, code)?;
        }
        functions.insert(name, (function, shared));
        Ok(function)
    }

    /// Seconds that the device takes for what `work` queues.
    pub fn time(&self, work: impl FnOnce() -> Result<(), TchError>) -> Result<f64, TchError> {
        let event = || {
            let mut event = ptr::null_mut();
            // SAFETY: `event` is valid for the write.
            check(self.error_name, "cuEventCreate", unsafe {
                (self.events.create)(&raw mut event, 0)
            })?;
            Ok::<_, TchError>(event)
        };
        let (start, end) = (event()?, event()?);
        let record = |event| {
            // SAFETY: the event was made above.
            check(self.error_name, "cuEventRecord", unsafe {
                (self.events.record)(event, DEFAULT_STREAM)
            })
        };
        record(start)?;
        work()?;
        record(end)?;
        let mut milliseconds = 0.0;
        // SAFETY: both events were recorded; the events of a self-test are few and are not given
        // back.
        unsafe {
            check(
                self.error_name,
                "cuEventSynchronize",
                (self.events.wait)(end),
            )?;
            check(
                self.error_name,
                "cuEventElapsedTime",
                (self.events.elapsed)(&raw mut milliseconds, start, end),
            )?;
        }
        Ok(f64::from(milliseconds) / 1e3)
    }
}

fn check(error_name: ErrorName, what: &str, code: c_int) -> Result<(), TchError> {
    if code == 0 {
        return Ok(());
    }
    let mut name = ptr::null();
    // SAFETY: the driver writes a pointer to a string of its own, or nothing.
    unsafe { error_name(code, &raw mut name) };
    // SAFETY: as above; the string lives as long as the driver.
    let name = if name.is_null() {
        "unknown error".into()
    } else {
        unsafe { CStr::from_ptr(name) }.to_string_lossy()
    };
    Err(failure(format!("{what} failed: {name} ({code})")))
}

/// A library of PyTorch's, loaded by its bare name.
pub fn load(name: &str) -> Result<Library, TchError> {
    // SAFETY: a library of PyTorch whose initialisers have no preconditions.
    unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) }
        .map_err(|e| failure(format!("this PyTorch has no usable {name} ({e})")))
}

/// The kernels as machine code for `architecture`; `library` has NVRTC's functions.
pub fn compile(library: &Library, architecture: &str) -> Result<Vec<u8>, TchError> {
    preload_builtins();
    let create: Create = symbol(library, "nvrtcCreateProgram")?;
    let compile: Compile = symbol(library, "nvrtcCompileProgram")?;
    let log_size: Size = symbol(library, "nvrtcGetProgramLogSize")?;
    let log: Text = symbol(library, "nvrtcGetProgramLog")?;
    let binary_size: Size = symbol(library, "nvrtcGetCUBINSize")?;
    let binary: Text = symbol(library, "nvrtcGetCUBIN")?;

    let source = CString::new(KERNELS).map_err(|e| failure(format!("the kernels' text: {e}")))?;
    let options = [
        format!("--gpu-architecture={architecture}"),
        "--std=c++17".to_owned(),
    ]
    .map(|option| CString::new(option).unwrap_or_default());
    let pointers = options.each_ref().map(|option| option.as_ptr());
    let mut program = ptr::null_mut();
    let read = |size: Size, text: Text, program| {
        let mut length = 0;
        // SAFETY: NVRTC states the length first and then writes that many bytes.
        unsafe {
            size(program, &raw mut length);
            let mut bytes = vec![0_u8; length];
            text(program, bytes.as_mut_ptr().cast());
            bytes
        }
    };
    // SAFETY: all strings live until the calls return.
    let code = unsafe {
        create(
            &raw mut program,
            source.as_ptr(),
            c"kernels.cu".as_ptr(),
            0,
            ptr::null(),
            ptr::null(),
        );
        compile(program, pointers.len() as c_int, pointers.as_ptr())
    };
    if code != 0 {
        let log = read(log_size, log, program);
        return Err(failure(format!(
            "NVRTC cannot compile the kernels for {architecture}: {}",
            String::from_utf8_lossy(&log)
        )));
    }
    Ok(read(binary_size, binary, program))
}

/// NVRTC opens its builtins by their bare name, which is found only if they are loaded already or
/// in a default path.
fn preload_builtins() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else {
        return;
    };
    let Some(nvrtc) = maps
        .lines()
        .filter_map(|l| l.split_whitespace().last())
        .find(|p| p.contains("libnvrtc.so"))
    else {
        return;
    };
    let Some(entries) = Path::new(nvrtc)
        .parent()
        .and_then(|folder| folder.read_dir().ok())
    else {
        return;
    };
    for entry in entries.flatten() {
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with("libnvrtc-builtins.so")
        {
            // SAFETY: NVRTC's own library. Where it cannot be loaded, NVRTC says so when it
            // compiles.
            if let Ok(library) =
                unsafe { Library::open(Some(entry.path()), RTLD_NOW | RTLD_GLOBAL) }
            {
                std::mem::forget(library);
            }
        }
    }
}
