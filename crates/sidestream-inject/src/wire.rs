//! The ring between a program and the command: a file that both map into their memory.
//!
//! It begins with a [`HEADER_WORDS`] of words, and the rest are records in sequence, which wrap around. A record is a number of 64-bit
//! words in the machine's byte order, the first of which says what it is ([`Head`]). The program writes a record completely
//! before it advances [`HEAD`]; the command advances [`TAIL`] once it has read it. Both count words from the beginning and never
//! decrease.
//!
//! The command does not trust what it reads: the program may have written anything into the file.

/// The first word of a ring; it ends with the version of the format.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SIDERNG\x01");
/// The number of words before the first record.
pub const HEADER_WORDS: usize = 512;
/// The number of words for records: 16 MiB.
pub const RING_WORDS: usize = 1 << 21;

/// The position of the magic number in the header.
pub const AT_MAGIC: usize = 0;
/// The position of the process's number.
pub const AT_PID: usize = 1;
/// The position of the count of words written.
pub const HEAD: usize = 8;
/// The position of the count of words read; in another cache line than [`HEAD`].
pub const TAIL: usize = 16;

/// The position of what is not zero once the command reads no more, so that the program need not wait.
pub const CLOSED: usize = 24;

/// The environment variable that names the folder in which programs create their rings.
pub const FOLDER: &str = "SIDESTREAM_RINGS";
/// The environment variable that names the number of the command's process: without a reader, nothing is written.
pub const READER: &str = "SIDESTREAM_READER";
/// The environment variable that names files in which to look for CUPTI, separated by colons.
pub const CUPTI: &str = "SIDESTREAM_CUPTI";
/// The environment variable that is `1` if call sites are not asked for.
pub const LIGHT: &str = "SIDESTREAM_LIGHT";
/// The environment variable that asks for activity records in place of calls: for how many milliseconds (0: to the end), how
/// many ranges (0: to the end), and the name of the range that begins the recording (none: at once), separated by commas.
pub const PROFILE: &str = "SIDESTREAM_PROFILE";

/// The environment variable that says for how many milliseconds copies of the host's memory are held back.
pub const PROVOKE: &str = "SIDESTREAM_PROVOKE";

/// The environment variable that names the probe to hear by in place of CUPTI: a library that the command has compiled.
pub const EXACT: &str = "SIDESTREAM_EXACT";
/// The environment variable that names the file of what the probe adds to kernels.
pub const EXACT_PATCHES: &str = "SIDESTREAM_EXACT_PATCHES";
/// The environment variable with parts of the names of the kernels to watch, separated by line feeds; all if it is empty.
pub const EXACT_ONLY: &str = "SIDESTREAM_EXACT_ONLY";

/// The environment variable that is `1` if launches are watched only until what they touch is known.
pub const EXACT_FIRST: &str = "SIDESTREAM_EXACT_FIRST";

/// The largest number of words of a record.
pub const MAX_WORDS: usize = 1 << 14;

/// What a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Tag {
    /// A call: the calling thread and the result; the context; the call site; then the words that
    /// [`Call`](crate::calls::ApiCall) describes.
    Call = 1,
    /// A kernel: its handle, and its name as bytes.
    Kernel = 2,
    /// Why this process is not heard, as bytes.
    Problem = 3,
    /// The rest of the ring is unused: the next record is at its beginning.
    Skip = 4,
    /// A program file or library: the distance from its addresses to those in memory, and its path as bytes.
    Module = 5,
    /// A place of calls: its number, then for each frame, the innermost first, the distance of its module and the address in
    /// the file.
    Site = 6,
    /// A place in Python: its number and line, then the file and the function as bytes, with a line feed between them.
    Line = 7,
    /// The name of a kernel, device or function: its number, and its bytes.
    Name = 8,
    /// An activity record of CUPTI, without its end. Its name is a number of [`Tag::Name`].
    Activity = 9,
    /// A range that the program named: its start, end and thread, and its name as bytes.
    Range = 10,
    /// Recording is possible: the time, on the clock of all times; the rank and the number of ranks, as bytes.
    Began = 11,
    /// How many records were dropped.
    Dropped = 12,
    /// All that was asked for is written.
    Stopped = 13,
    /// The host touched or ended memory that a copy may use: the thread and [`Heard`], the address of the first byte and after the
    /// last, the call site, two words of what the memory held, and the name of a system call as bytes.
    Host = 14,
    /// Copies between pinned memory and devices: their number, their bytes, how many of these were protected and how many compared,
    /// how many accesses were not kept; and as bytes why nothing is protected any more, if so.
    HostEnd = 15,
    /// A copy that was held back has copied another byte than without the host's access: [`Heard`], the byte's address, the access's
    /// call site, the right byte and the wrong one.
    Proof = 16,
    /// A call that was written before it waited has returned: the thread.
    Returned = 17,
    /// The kernels that the call launched whose record comes next of the same thread: the thread; then for each, its node or zero,
    /// and the number of the launch. A kernel that is captured has its node, and zero. There may be several such records.
    Launches = 18,
    /// What a launch touched: its number, with bit 63 if more records of it follow, bit 62 if some accesses are missing, bit 61 if
    /// some came before the wait of a dependent launch, bit 60 if it stores tensors, which is not heard, bit 59 if loads of
    /// tensors are, and bit 58 if it was not watched, and what earlier launches touched was taken. Then pairs: an address with the class of access from bit 60 on (0 read, 1 write, 2 atomic; and 4, before that
    /// wait), and the end.
    Touched = 19,
    /// The tensor copies of a launch, before its last [`Tag::Touched`]: its number; then for each, the hash of the tensor map's
    /// words; the class, the mode from bit 8 and the dimensions from bit 16 on, and bit 24 if it came before the wait; and
    /// three words of coordinates.
    Boxes = 20,
    /// A tensor map, before the first [`Tag::Boxes`] that names it: the hash of its words, and these 16.
    Map = 21,
    /// What may be the tensor maps among the parameters of the kernel that the next call of a thread launches: the thread; then
    /// the 16 words of each.
    Maps = 22,
}

/// What the host did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Heard {
    /// It read. The words are what it read.
    Load = 0,
    /// It wrote. The words are what was there before.
    Store = 1,
    /// It gave the memory back.
    End = 2,
    /// It wrote at some time since the copy was submitted. The words are what was there then, and what is there now.
    Changed = 3,
    /// A call of the system failed, since it was given memory that was protected.
    Refused = 4,
}

impl Heard {
    /// Returns what has this number.
    pub fn of(number: u8) -> Option<Heard> {
        use Heard::*;
        let all = [Load, Store, End, Changed, Refused];
        all.get(usize::from(number)).copied()
    }
}

impl Tag {
    /// Returns the tag of this number.
    pub fn of(number: u8) -> Option<Tag> {
        use Tag::*;
        const ALL: [Tag; 22] = [
            Call, Kernel, Problem, Skip, Module, Site, Line, Name, Activity, Range, Began, Dropped,
            Stopped, Host, HostEnd, Proof, Returned, Launches, Touched, Boxes, Map, Maps,
        ];
        ALL.into_iter().find(|tag| *tag as u8 == number)
    }
}

/// The first word of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The number of words, with this one.
    pub words: u16,
    /// What the record is.
    pub tag: Tag,
    /// For a call: its index in [`CALLS`](crate::calls::CALLS). For text: the number of its bytes.
    pub index: u16,
    /// For a call: whether a null stream means the thread's own default stream.
    pub per_thread: bool,
}

impl Head {
    /// Returns the word.
    pub fn word(self) -> u64 {
        u64::from(self.words)
            | u64::from(self.tag as u8) << 16
            | u64::from(self.per_thread) << 24
            | u64::from(self.index) << 32
    }

    /// Returns the head that a word contains, if it is one.
    pub fn of(word: u64) -> Option<Head> {
        let words = word as u16;
        Some(Head {
            words: (words > 0 && usize::from(words) <= MAX_WORDS).then_some(words)?,
            tag: Tag::of((word >> 16) as u8)?,
            per_thread: word >> 24 & 1 == 1,
            index: (word >> 32) as u16,
        })
    }
}

/// The largest number of frames of a place.
pub const FRAMES: usize = 8;

/// In the first word of [`Tag::Touched`]: more records of the launch follow.
pub const MORE: u64 = 1 << 63;
/// In the same word: some accesses of the launch are missing.
pub const INCOMPLETE: u64 = 1 << 62;
/// In the same word: the launch stores tensors, of which NVIDIA's library does not tell.
pub const STORES: u64 = 1 << 60;
/// In the same word: the maps by which the launch loads tensors are told, and the driver lays maps out as is known.
pub const LOADS: u64 = 1 << 59;
/// In the same word: taken from earlier launches of the kernel.
pub const EARLIER: u64 = 1 << 58;
/// In the same word: the bits of the launch's number.
pub const LAUNCH: u64 = (1 << 48) - 1;

/// The number of words of a call before its arguments.
pub const CALL_WORDS: usize = 4;

/// The kinds of activity records, as CUPTI numbers them: a copy.
pub const MEMCPY: u32 = 1;
/// Memory that is set.
pub const MEMSET: u32 = 2;
/// A call of the driver. The number of its name is its first word.
pub const DRIVER: u32 = 4;
/// A call of the runtime.
pub const RUNTIME: u32 = 5;
/// A device.
pub const DEVICE: u32 = 8;
/// A kernel.
pub const KERNEL: u32 = 10;
/// A copy between devices.
pub const PEER: u32 = 22;
/// A wait.
pub const SYNC: u32 = 38;
/// The position of the name among the words of a kernel.
pub const KERNEL_NAME: usize = 13;
/// The position of the name among the words of a device.
pub const DEVICE_NAME: usize = 17;
