//! Kernels, whose signatures declare what they read and what they write.
//!
//! The signature is a tuple of [`Read`], [`Write`] and [`Value`], in the order of the kernel's parameters; a single
//! parameter needs no tuple. A launch takes views and numbers of exactly these types, so the stream knows which
//! memory the kernel touches.

pub mod library;
pub(crate) mod part;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::{Arg, Code, HostArg, Image};
use crate::buffer::{Pod, View, ViewMut};
use crate::tracker::{Touch, as_kernel};
use part::{NodeArg, Part, PartMut};

pub use crate::backend::Grid;
/// The work of a kernel on the simulated GPU, from which [`KernelCost::Grid`] derives its time. [`Grid`] is the grid
/// of a launch, and the argument of the closure of [`Kernel::with_cost`].
pub use crate::engine::Grid as Work;
pub use crate::engine::KernelCost;

/// A kernel with the signature `A`.
///
/// Clones are handles of one kernel.
pub struct Kernel<A> {
    code: Arc<Code>,
    takes: PhantomData<fn(A)>,
}

impl<A> Clone for Kernel<A> {
    fn clone(&self) -> Self {
        Kernel {
            code: Arc::clone(&self.code),
            takes: PhantomData,
        }
    }
}

// The bound is on the functions and not on this `impl`, so that the compiler explains what is wrong with a signature.
impl<A> Kernel<A> {
    /// Makes a kernel in Rust, for the simulated GPU. It gets a slice for each buffer with the content at the start
    /// of the kernel; the content that it leaves in the slices it may write is visible when the kernel ends.
    ///
    /// The function must not call the runtime: such a call returns an error, or panics if it cannot. Values that the
    /// function drops are dropped on another thread. It runs in this process, on one core and on copies of its
    /// buffers, so large buffers take real time.
    ///
    /// This is safe, since a Rust function stays within its slices. A panic in it acts like a trap on a real device:
    /// the device is lost.
    pub fn on_host(name: &str, run: impl Fn(Grid, A::Host<'_>) + Send + Sync + 'static) -> Kernel<A>
    where
        A: KernelArgs,
    {
        Kernel::with(Code {
            host: Some(host_form::<A>(run)),
            ..Code::new(name)
        })
    }

    /// Makes a kernel in PTX: the entry `name` of `ptx`.
    ///
    /// # Safety
    /// The entry has parameters of these types in this order: a pointer for each [`Read`] and [`Write`], a number for
    /// each [`Value`]. On every grid it touches no memory outside the views that it is passed, and does not write
    /// those that are only read.
    pub unsafe fn from_ptx(ptx: &str, name: &str) -> Kernel<A>
    where
        A: KernelArgs,
    {
        Kernel::with(Code {
            image: Some(Image::Ptx(ptx.to_owned())),
            ..Code::new(name)
        })
    }

    /// Makes a kernel in CUDA C++: the function `name` of `source`, declared `extern "C" __global__`.
    ///
    /// The kernel is compiled for a device at its first launch there, which takes a tenth of a second or more. NVRTC
    /// compiles it; it has to be installed and is loaded at that time. No header files are available other than the
    /// compiler's own. [`Error::NotCompiled`](crate::error::Error::NotCompiled) contains the compiler's messages.
    ///
    /// # Safety
    /// As for [`from_ptx`](Kernel::from_ptx).
    pub unsafe fn from_cuda(source: &str, name: &str) -> Kernel<A>
    where
        A: KernelArgs,
    {
        Kernel::with(Code {
            image: Some(Image::Cuda(source.to_owned())),
            ..Code::new(name)
        })
    }

    /// Adds a form in Rust to the kernel, so that the simulated GPU can run it.
    ///
    /// # Panics
    /// If the kernel has clones.
    #[track_caller]
    pub fn and_on_host(
        mut self,
        run: impl Fn(Grid, A::Host<'_>) + Send + Sync + 'static,
    ) -> Kernel<A>
    where
        A: KernelArgs,
    {
        self.code_mut().host = Some(host_form::<A>(run));
        self
    }

    /// Sets the cost of a launch on the simulated GPU. Without it the kernel's time follows from the bytes that it
    /// touches. Like the kernel, the closure must not call the runtime.
    ///
    /// # Panics
    /// If the kernel has clones.
    #[track_caller]
    pub fn with_cost(self, cost: impl Fn(Grid) -> KernelCost + Send + Sync + 'static) -> Kernel<A> {
        self.with_cost_of(move |grid, _| cost(grid))
    }

    /// Like [`Kernel::with_cost`], for a cost that also depends on the launch's arguments.
    #[track_caller]
    fn with_cost_of(
        mut self,
        cost: impl Fn(Grid, &[Arg]) -> KernelCost + Send + Sync + 'static,
    ) -> Kernel<A> {
        let cost = move |grid, args: &[Arg]| as_kernel(|| cost(grid, args));
        self.code_mut().cost = Some(Box::new(cost));
        self
    }

    /// Returns the kernel's name.
    pub fn name(&self) -> &str {
        &self.code.name
    }

    #[doc(hidden)]
    pub fn code(&self) -> &Arc<Code> {
        &self.code
    }

    fn with(code: Code) -> Kernel<A> {
        Kernel {
            code: Arc::new(code),
            takes: PhantomData,
        }
    }

    #[track_caller]
    fn code_mut(&mut self) -> &mut Code {
        let code = Arc::get_mut(&mut self.code);
        code.expect("a kernel is configured before it is cloned or launched")
    }
}

impl<A> fmt::Debug for Kernel<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({:?})", self.code.name)
    }
}

impl Grid {
    /// Returns a one-dimensional grid of blocks of `threads` threads.
    pub fn new(blocks: u32, threads: u32) -> Grid {
        Grid {
            blocks: [blocks, 1, 1],
            threads: [threads, 1, 1],
            shared_bytes: 0,
        }
    }

    /// Returns the smallest grid of blocks of `threads` threads that has a thread for each of `items`; at least one
    /// block.
    ///
    /// # Panics
    /// If `threads` is zero or the number of blocks exceeds the limit of a grid.
    #[track_caller]
    pub fn cover(items: usize, threads: u32) -> Grid {
        assert!(threads > 0, "a block has at least one thread");
        let blocks = items.div_ceil(threads as usize).max(1);
        let blocks = u32::try_from(blocks).ok().filter(|&n| n <= i32::MAX as u32);
        Grid::new(blocks.expect("a grid has fewer than 2^31 blocks"), threads)
    }

    /// Returns this grid with `shared_bytes` of dynamic shared memory per block.
    pub fn shared(self, shared_bytes: u32) -> Grid {
        Grid {
            shared_bytes,
            ..self
        }
    }
}

// ------------------------------------------------------------------ signatures

/// A parameter that the kernel reads.
pub struct Read<T>(PhantomData<T>);
/// A parameter that the kernel writes and may also read.
pub struct Write<T>(PhantomData<T>);
/// A parameter that is a number of at most eight bytes.
pub struct Value<T>(PhantomData<T>);

/// A kernel's signature: a tuple of [`Param`]s, or a single one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a kernel signature",
    label = "neither `Read<T>`, `Write<T>` or `Value<T>` nor a tuple of these",
    note = "a signature lists the parameters, as in `Kernel::<(Read<f32>, Write<f32>)>`; a tuple has at most 12"
)]
pub trait KernelArgs {
    /// The argument type of a launch.
    type Access<'a>;
    /// The argument type of a graph node.
    type Node;
    /// The argument type of a kernel in Rust.
    type Host<'a>;

    #[doc(hidden)]
    fn pass<'a>(access: Self::Access<'a>, passed: &mut Passed<'a>);
    #[doc(hidden)]
    fn pass_node(node: Self::Node, passed: &mut SmallVec<[NodeArg; 6]>);
    #[doc(hidden)]
    fn host(args: &mut [HostArg]) -> Option<Self::Host<'_>>;
}

/// One parameter of a signature.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a kernel parameter",
    label = "not a `Read<T>`, `Write<T>` or `Value<T>` of a plain type",
    note = "a kernel reads memory by `Read<T>`, writes it by `Write<T>` and takes a number by `Value<T>`, where `T` is `Pod`"
)]
pub trait Param {
    /// Its argument type in a launch.
    type Access<'a>;
    /// Its argument type in a graph node.
    type Node;
    /// Its argument type in a kernel in Rust.
    type Host<'a>;

    #[doc(hidden)]
    fn pass<'a>(access: Self::Access<'a>, passed: &mut Passed<'a>);
    #[doc(hidden)]
    fn pass_node(node: Self::Node, passed: &mut SmallVec<[NodeArg; 6]>);
    #[doc(hidden)]
    fn host(arg: &mut HostArg) -> Option<Self::Host<'_>>;
}

/// Arguments on their way to a back end, with the memory that they touch.
#[doc(hidden)]
#[derive(Default)]
pub struct Passed<'a> {
    pub(crate) args: SmallVec<[Arg; 6]>,
    pub(crate) touches: SmallVec<[Touch<'a>; 4]>,
}

/// Whether values of `T` fit the alignment of [`HostBytes`](crate::backend::HostBytes), which back a kernel in Rust.
const fn is_aligned<T>() -> bool {
    align_of::<T>() <= 16
}

impl<T: Pod> Param for Read<T> {
    type Access<'a> = View<'a, T>;
    type Node = Part<T>;
    type Host<'a> = &'a [T];

    #[inline]
    fn pass<'a>(view: View<'a, T>, passed: &mut Passed<'a>) {
        const {
            assert!(
                is_aligned::<T>(),
                "a kernel's values are aligned to 16 bytes at most"
            )
        };
        passed.args.push(view.arg());
        passed.touches.push(view.touch());
    }

    fn pass_node(part: Part<T>, passed: &mut SmallVec<[NodeArg; 6]>) {
        passed.push(NodeArg::Memory(part.piece()));
    }

    fn host(arg: &mut HostArg) -> Option<&[T]> {
        match arg {
            HostArg::Memory(memory) => bytemuck::try_cast_slice(memory.bytes()).ok(),
            HostArg::Scalar { .. } => None,
        }
    }
}

impl<T: Pod> Param for Write<T> {
    type Access<'a> = ViewMut<'a, T>;
    type Node = PartMut<T>;
    type Host<'a> = &'a mut [T];

    #[inline]
    fn pass<'a>(view: ViewMut<'a, T>, passed: &mut Passed<'a>) {
        const {
            assert!(
                is_aligned::<T>(),
                "a kernel's values are aligned to 16 bytes at most"
            )
        };
        passed.args.push(view.arg());
        passed.touches.push(view.touch());
    }

    fn pass_node(part: PartMut<T>, passed: &mut SmallVec<[NodeArg; 6]>) {
        passed.push(NodeArg::Memory(part.piece()));
    }

    fn host(arg: &mut HostArg) -> Option<&mut [T]> {
        match arg {
            HostArg::Memory(memory) => bytemuck::try_cast_slice_mut(memory.bytes_mut()).ok(),
            HostArg::Scalar { .. } => None,
        }
    }
}

impl<T: Pod> Param for Value<T> {
    type Access<'a> = T;
    type Node = T;
    type Host<'a> = T;

    #[inline]
    fn pass<'a>(value: T, passed: &mut Passed<'a>) {
        passed.args.push(scalar(value));
    }

    fn pass_node(value: T, passed: &mut SmallVec<[NodeArg; 6]>) {
        passed.push(NodeArg::Value(scalar(value)));
    }

    fn host(arg: &mut HostArg) -> Option<T> {
        match arg {
            HostArg::Scalar { bytes, len } if usize::from(*len) == size_of::<T>() => bytes
                .get(..size_of::<T>())
                .map(bytemuck::pod_read_unaligned),
            _ => None,
        }
    }
}

fn scalar<T: Pod>(value: T) -> Arg {
    const { assert!(size_of::<T>() <= 8, "a value has at most eight bytes") };
    let mut bytes = [0; 8];
    bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
    let len = size_of::<T>() as u8;
    Arg::Scalar { bytes, len }
}

fn host_form<A: KernelArgs>(
    run: impl Fn(Grid, A::Host<'_>) + Send + Sync + 'static,
) -> crate::backend::HostForm {
    Box::new(move |grid, args| {
        let args = A::host(args).expect("the back end passes the launch's arguments");
        as_kernel(|| run(grid, args));
    })
}

/// The signature of a kernel without parameters.
impl KernelArgs for () {
    type Access<'a> = ();
    type Node = ();
    type Host<'a> = ();

    fn pass<'a>((): (), _: &mut Passed<'a>) {}

    fn pass_node((): (), _: &mut SmallVec<[NodeArg; 6]>) {}

    fn host(_: &mut [HostArg]) -> Option<()> {
        Some(())
    }
}

/// One parameter needs no tuple. This is a macro because a blanket `impl` would cover the tuples too.
macro_rules! alone {
    ($($param:ident),+) => {
        $(impl<T: Pod> KernelArgs for $param<T> {
            type Access<'a> = <Self as Param>::Access<'a>;
            type Node = <Self as Param>::Node;
            type Host<'a> = <Self as Param>::Host<'a>;

            fn pass<'a>(access: Self::Access<'a>, passed: &mut Passed<'a>) {
                <Self as Param>::pass(access, passed);
            }

            fn pass_node(node: Self::Node, passed: &mut SmallVec<[NodeArg; 6]>) {
                <Self as Param>::pass_node(node, passed);
            }

            fn host(args: &mut [HostArg]) -> Option<Self::Host<'_>> {
                <Self as Param>::host(args.first_mut()?)
            }
        })+
    };
}

alone!(Read, Write, Value);

/// A tuple of parameters is a signature. This is a macro because Rust cannot abstract over tuples of every length.
macro_rules! signature {
    ($($param:ident $arg:ident),+) => {
        impl<$($param: Param),+> KernelArgs for ($($param,)+) {
            type Access<'a> = ($($param::Access<'a>,)+);
            type Node = ($($param::Node,)+);
            type Host<'a> = ($($param::Host<'a>,)+);

            fn pass<'a>(($($arg,)+): Self::Access<'a>, passed: &mut Passed<'a>) {
                $($param::pass($arg, passed);)+
            }

            fn pass_node(($($arg,)+): Self::Node, passed: &mut SmallVec<[NodeArg; 6]>) {
                $($param::pass_node($arg, passed);)+
            }

            fn host(args: &mut [HostArg]) -> Option<Self::Host<'_>> {
                let mut args = args.iter_mut();
                Some(($($param::host(args.next()?)?,)+))
            }
        }
    };
}

signature!(A a);
signature!(A a, B b);
signature!(A a, B b, C c);
signature!(A a, B b, C c, D d);
signature!(A a, B b, C c, D d, E e);
signature!(A a, B b, C c, D d, E e, F f);
signature!(A a, B b, C c, D d, E e, F f, G g);
signature!(A a, B b, C c, D d, E e, F f, G g, H h);
signature!(A a, B b, C c, D d, E e, F f, G g, H h, I i);
signature!(A a, B b, C c, D d, E e, F f, G g, H h, I i, J j);
signature!(A a, B b, C c, D d, E e, F f, G g, H h, I i, J j, K k);
signature!(A a, B b, C c, D d, E e, F f, G g, H h, I i, J j, K k, L l);
