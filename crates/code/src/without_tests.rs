//! Removes from a parsed file what only tests are compiled with.

use syn::{
    Attribute, Block, Expr, ExprMatch, ExprStruct, Fields, FnArg, ForeignItem, ImplItem, Item,
    ItemEnum, ItemForeignMod, ItemImpl, ItemMod, ItemTrait, Meta, PatStruct, Signature, Stmt,
    TraitItem,
    punctuated::Punctuated,
    visit_mut::{self, VisitMut},
};

/// Removes every item, statement, field, variant, match arm and parameter under `#[cfg(test)]`, and
/// returns the modules in other files that are removed with them, as paths (`c/e`).
///
/// What the grammar calls one of these ends where the grammar says, so nothing behind it is ever
/// removed. Where the attribute stands at another place, what it is for stays: a test too many in a
/// digest is harmless.
pub fn remove(file: &mut syn::File) -> Vec<String> {
    let mut remover = Remover {
        path: Vec::new(),
        modules: Vec::new(),
    };
    remover.visit_file_mut(file);
    remover.modules
}

struct Remover {
    /// Inline modules around the present place.
    path: Vec<String>,
    modules: Vec<String>,
}

impl Remover {
    fn items(&mut self, items: &mut Vec<Item>) {
        items.retain(|item| {
            let is_kept = is_kept(of_item(item));
            if let Item::Mod(ItemMod {
                ident,
                content: None,
                ..
            }) = item
                && !is_kept
            {
                let name = ident.to_string();
                self.modules.push(
                    self.path
                        .iter()
                        .chain([&name])
                        .cloned()
                        .collect::<Vec<_>>()
                        .join("/"),
                );
            }
            is_kept
        });
    }
}

impl VisitMut for Remover {
    fn visit_file_mut(&mut self, file: &mut syn::File) {
        self.items(&mut file.items);
        visit_mut::visit_file_mut(self, file);
    }
    fn visit_item_mod_mut(&mut self, module: &mut ItemMod) {
        self.path.push(module.ident.to_string());
        if let Some((_, items)) = &mut module.content {
            self.items(items);
        }
        visit_mut::visit_item_mod_mut(self, module);
        self.path.pop();
    }
    fn visit_item_impl_mut(&mut self, block: &mut ItemImpl) {
        block.items.retain(|item| is_kept(of_impl_item(item)));
        visit_mut::visit_item_impl_mut(self, block);
    }
    fn visit_item_trait_mut(&mut self, block: &mut ItemTrait) {
        block.items.retain(|item| is_kept(of_trait_item(item)));
        visit_mut::visit_item_trait_mut(self, block);
    }
    fn visit_item_foreign_mod_mut(&mut self, block: &mut ItemForeignMod) {
        block.items.retain(|item| is_kept(of_foreign_item(item)));
        visit_mut::visit_item_foreign_mod_mut(self, block);
    }
    fn visit_item_enum_mut(&mut self, item: &mut ItemEnum) {
        retain(&mut item.variants, |variant| &variant.attrs);
        visit_mut::visit_item_enum_mut(self, item);
    }
    fn visit_fields_mut(&mut self, fields: &mut Fields) {
        match fields {
            Fields::Named(fields) => retain(&mut fields.named, |field| &field.attrs),
            Fields::Unnamed(fields) => retain(&mut fields.unnamed, |field| &field.attrs),
            Fields::Unit => {}
        }
        visit_mut::visit_fields_mut(self, fields);
    }
    fn visit_signature_mut(&mut self, signature: &mut Signature) {
        retain(&mut signature.inputs, |argument| match argument {
            FnArg::Receiver(receiver) => &receiver.attrs,
            FnArg::Typed(argument) => &argument.attrs,
        });
        visit_mut::visit_signature_mut(self, signature);
    }
    fn visit_block_mut(&mut self, block: &mut Block) {
        block.stmts.retain(|statement| {
            is_kept(match statement {
                Stmt::Local(local) => &local.attrs,
                Stmt::Item(item) => of_item(item),
                Stmt::Expr(expression, _) => of_statement(expression),
                Stmt::Macro(call) => &call.attrs,
            })
        });
        visit_mut::visit_block_mut(self, block);
    }
    fn visit_expr_match_mut(&mut self, expression: &mut ExprMatch) {
        expression.arms.retain(|arm| is_kept(&arm.attrs));
        visit_mut::visit_expr_match_mut(self, expression);
    }
    fn visit_expr_struct_mut(&mut self, expression: &mut ExprStruct) {
        retain(&mut expression.fields, |field| &field.attrs);
        visit_mut::visit_expr_struct_mut(self, expression);
    }
    fn visit_pat_struct_mut(&mut self, pattern: &mut PatStruct) {
        retain(&mut pattern.fields, |field| &field.attrs);
        visit_mut::visit_pat_struct_mut(self, pattern);
    }
}

/// Is no attribute `cfg(test)`?
fn is_kept(attributes: &[Attribute]) -> bool {
    !attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    })
}

fn retain<T, P: Default>(list: &mut Punctuated<T, P>, attributes: impl Fn(&T) -> &[Attribute]) {
    if list.iter().all(|element| is_kept(attributes(element))) {
        return;
    }
    *list = std::mem::take(list)
        .into_iter()
        .filter(|element| is_kept(attributes(element)))
        .collect();
}

macro_rules! attributes {
    ($node:expr, $kind:ident: $($variant:ident)*) => {
        match $node {
            $($kind::$variant(node) => &node.attrs,)*
            _ => &[],
        }
    };
}

fn of_item(item: &Item) -> &[Attribute] {
    attributes!(item, Item: Const Enum ExternCrate Fn ForeignMod Impl Macro Mod Static Struct Trait TraitAlias Type Union Use)
}

fn of_impl_item(item: &ImplItem) -> &[Attribute] {
    attributes!(item, ImplItem: Const Fn Type Macro)
}

fn of_trait_item(item: &TraitItem) -> &[Attribute] {
    attributes!(item, TraitItem: Const Fn Type Macro)
}

fn of_foreign_item(item: &ForeignItem) -> &[Attribute] {
    attributes!(item, ForeignItem: Fn Static Type Macro)
}

/// The attributes of a statement that is an expression: the parser hands them to the expression's
/// leftmost part.
fn of_statement(expression: &Expr) -> &[Attribute] {
    match expression {
        Expr::Assign(assignment) => of_statement(&assignment.left),
        Expr::Binary(operation) => of_statement(&operation.left),
        other => {
            attributes!(other, Expr: Array Async Await Block Break Call Cast Closure Const Continue Field ForLoop Group If
            Index Infer Let Lit Loop Macro Match MethodCall Paren Path Range RawAddr Reference Repeat Return Struct Try
            TryBlock Tuple Unary Unsafe While Yield)
        }
    }
}
